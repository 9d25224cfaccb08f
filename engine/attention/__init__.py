"""The attention backends, which implement `engine.contracts.attention`.

Read plain (torch, every device), groups and dense (its parts), then cuda, which launches
`engine.kernels.decode.attention` and flashinfer.
"""
