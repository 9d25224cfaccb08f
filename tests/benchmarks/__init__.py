"""Benchmarks tried out on a CPU, as far as it goes."""
