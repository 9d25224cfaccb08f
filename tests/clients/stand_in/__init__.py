"""Packages that cannot be installed where there is no GPU, as far as clients use them.

The folder is put on a client's path: what is here is `vllm` there.
"""
