"""The architectures that run on our own layers, a file a family.

`table` says which file describes which architecture. A file lists the layers in order, as a
paper's figure would, and names their tensors; what a layer computes is in `engine.models.layers`.
"""
