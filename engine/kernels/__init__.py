"""Triton kernels of the model's layers and of the step's ends, torch twins beside them.

Read the layers' first: norm, activation, linear, skinny, norm_linear, rope; then attention: pages,
decode, prefill_attention, prefill_shares, item_attention; then step_io, ngram and suffix. fp8 and
fp8_linear are numbers and products of quantized weights. overlap lets one kernel begin while the
one before it ends.
"""
