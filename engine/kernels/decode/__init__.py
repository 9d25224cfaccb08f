"""Attention of rows that decode: `attention` is the kernel, the others are its parts."""
