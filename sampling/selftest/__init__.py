"""The self-test of the sampler: what `tailrace verify` checks on the machine it runs on.

In the order to read them: `tails` with `tail_wins` (distributions whose rare tokens coarse noise
loses, and the draws they win), `statistics` (tests of counts against probabilities), `paths` and
`speculative_paths` (every path of the sampler as a function that draws tokens), `checks` (the
checks of such a function, each a line of the table).
"""
