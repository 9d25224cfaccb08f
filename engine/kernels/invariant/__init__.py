"""Kernels whose sums have one order, whatever else a step computes."""
