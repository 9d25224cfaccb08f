"""Tests on a GPU: which run first, in how many processes, and what came of them."""
