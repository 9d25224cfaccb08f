"""The architectures that run on our own layers.

Read decoder_config (which transformers configs run), options (what their layers do) and
decoder_weights (how tensors are laid out).
"""
