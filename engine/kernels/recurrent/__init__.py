"""Kernels of layers that keep a state a row: short convolutions and linear recurrences.

`engine.memory.state_rows` says which rows a call computes and where their states are; `convolution`
and `recurrence` are the two computations, `serial` and `chunked` the recurrence's two Triton
kernels, `gates` and `gated_norm` what comes before and after it. `reference` has the textbook
versions in float64.
"""
