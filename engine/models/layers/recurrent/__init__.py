"""Mixers that keep a state of each row: delta rules, state spaces and short convolutions."""
