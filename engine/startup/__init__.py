"""Makes an engine ready to step, and the commands that prepare and test one.

Read build, assembly, then memory (how large the KV cache may be); kernel_cache is
`tailrace warmup`, self_test is `tailrace verify`.
"""
