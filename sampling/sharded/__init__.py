"""Draws from a vocabulary that is divided among ranks, by the kernels of one rank.

`tiles` gathers the statistics of all tiles, `stages` and `scan` what the filters' stages read of
logits, `cut` runs those stages, and `race` decides a draw without filters.
"""
