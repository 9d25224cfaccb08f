"""Checkpoints that bring their own quantisation.

`scheme` says what is stored, `config` reads that from a checkpoint's `quantization_config`,
`unpack` reads tensors as each tool writes them, `parts` makes products of them, of weights in the
order of activations by `ordered`, `reader` puts the parts of a fused product together, and `dummy`
makes random ones.
"""
