"""The sampler: from a model's logits to tokens and their logprobs, exact to the tail.

It knows nothing of the engine or the server. Modules of this folder are what all of its rooms
share, in the order to read them: `params` (what a request asks for), `noise` (which random number
decides what), `race` (how a token is drawn), `rows` with `edits`, `penalties` and `mirror` (the
requests' parameters on the device), `batch` (inputs and outputs of a draw), `reference` (textbook
versions to test against). `triton_support` and `compiling` deal with Triton, `warm_up` with what
happens before a server is ready.

The rooms, from the bottom up: `kernels` (the draw in Triton), `filters` (min-p, top-k, top-p),
`paths` (a whole draw, by torch, Triton or FlashInfer), `speculative` (drafts and their
verification). `sampler` puts them together; `selftest` checks every path, for `tailrace verify`.
"""
