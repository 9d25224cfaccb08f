"""Speculative decoding's part of sampling: how drafts are drawn, and how they are verified.

In the order to read them: `draws` (the mathematics in torch, and which noise decides what),
`drafting` with `triton_drafting` (the drafter's draw), `verification` with `torch_verification` and
`triton_verification` (which drafts are accepted, and the token after them). `torch_blocks` decides
a row's drafts together. The kernels are `verdict` (the decision on each draft), `blocks` (on all of
a row) and `residual` (the draw after the last accepted one), which read p and q by `ratio`.
"""
