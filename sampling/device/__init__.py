"""Ground floor: what kernels and tensors need of a device, whatever they compute.

Triton's import, kernels compiled together and ahead, host arrays copied without waiting, kernels
that overlap, and exchanges between ranks. It imports nothing else of the project.
"""
