"""Updates of a served model's weights, on every rank alike.

`room` follows the commands, `update` is one transaction, `names` finds the weights that a trainer's
names mean, `sources` gives the tensors: of a folder, of a body, of a group (`groups`) of processes,
or of another process's memory (`handles`). `agreement` lets ranks fail together.
"""
