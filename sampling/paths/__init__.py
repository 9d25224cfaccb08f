"""The paths a draw can take, each from logits to tokens and logprobs.

`torch_path` is the CPU's, with `torch_edits` for masks, bias and penalties; it is the one to read
first. `triton_path` is CUDA's and draws the same tokens; `flashinfer` draws some of its rows by
FlashInfer's sampler instead, where that is faster. `logprobs` says what is reported of a token and
computes it in torch, `kept` what masks and filters left of the vocabulary; `prompt_logprobs` does
so for a prompt's own tokens, `listed_logprobs` for labels.
"""
