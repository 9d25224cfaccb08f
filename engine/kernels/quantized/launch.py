# mypy: allow-untyped-defs, allow-incomplete-defs
"""The shape of a kernel's launch, and how kernels for a lone row cut what they hold."""

from __future__ import annotations

from typing import Any, NamedTuple

from sampling.device.triton_support import INTERPRETED, constexpr, jit, tl

PARTS = 8
"""The parts that the row of a kernel for a lone row is cut into."""

_PARTS = constexpr(PARTS)


class LaunchShape(NamedTuple):
    """What a program computes and with what.

    Attributes:
        rows: channels of the weight. warps: of 32 threads each.
        tokens: rows of the input; 0 is all of them.
        stages: steps of the loop whose loads are in flight; 0 where there is no loop.
    """

    rows: int
    warps: int
    tokens: int = 0
    stages: int = 0


class LoneShape(NamedTuple):
    """How the product of a lone row is shared out.

    Attributes:
        rows: outputs that a program computes at a time; a gated one takes two channels.
        warps: of 32 threads each, of a program.
        programs: about as many, each with as many channels.
        registers: most of a thread.
    """

    rows: int
    warps: int
    programs: int
    registers: int = 128

    @property
    def options(self) -> dict[str, Any]:
        """Options of the launch."""
        options = {"num_warps": self.warps}
        return options if INTERPRETED else options | {"maxnreg": self.registers}


@jit
def eighths(values):
    """The parts of values [PARTS * n], [n] each, in order."""
    values = tl.reshape(values, (2, 2, 2, values.shape[0] // _PARTS))
    even, odd = tl.split(tl.permute(values, (3, 0, 1, 2)))
    by_four, second = tl.split(even)
    first, third = tl.split(odd)
    p0, p4 = tl.split(by_four)
    p1, p5 = tl.split(first)
    p2, p6 = tl.split(second)
    p3, p7 = tl.split(third)
    return p0, p1, p2, p3, p4, p5, p6, p7
