"""The Llama family on fused modules of our own.

Read decoder, then decoder_config (which transformers configs it runs) decoder_weights (how tensors
are laid out) and layers (what runs).
"""
