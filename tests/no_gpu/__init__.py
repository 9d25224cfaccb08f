"""A Hopper GPU on a machine that has none: kernels are compiled, tensors and torch pretend.

`compiler` compiles what is launched, `tensors` are on the CPU and say that they are on a GPU,
`cuda` answers for torch.cuda, `starts` are of servers; `python -m tests.no_gpu.run` reports them.
"""
