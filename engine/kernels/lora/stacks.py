"""The adapters of one product, where kernels read them."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Stacks(NamedTuple):
    """The adapters of one product in S slots; the product joins the outputs of P modules.

    A product of experts has E of them, and the slots of its tiles are slot * E + expert; E is 1 for
    all others.

    Attributes:
        a: [S, E, P, R, in]; of an embedding, which has one module, [S, 1, in, R].
        b: [S, E, out, R]. Ranks below R are padded with zeros.
        scales: float32 [S, E, P].
        bounds: the first output of each module, and the one after the last.
    """

    a: torch.Tensor
    b: torch.Tensor
    scales: torch.Tensor
    bounds: tuple[int, ...]
