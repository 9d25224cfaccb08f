"""The layers that families are made of, see `layer` for their contract.

Mixers: `attention` (with `query_key` and `rotation`), `latent_attention`. MLPs: `mlp`, `experts`,
`activation`. `norms` and `residual` are around them, `parallel` has both side by side, and
`vocabulary` is the two ends of a decoder, which `decoder_spec` puts together.
"""
