"""The draw in Triton: kernels, and device functions that kernels of other rooms share.

In the order to read them: `row_params` and `logits` (how a kernel reads a row's parameters and its
processed logits), `order` (the order of tokens as integers), `tile_pass` (one read of the logits:
maximum and mass of every tile), `race` (the pick of a tile, then of a token), `penalties` (the
count of drawn tokens), `report` and `logprobs` (the logprobs of the tokens). Where the three
filters apply, `sampling.filters` runs between the tile pass and the race.
"""
