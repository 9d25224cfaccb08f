"""Calls of the recurrent kernels as a step makes them, over rows whose whole inputs are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from engine.kernels.recurrent import reference
from engine.kernels.recurrent.matrices import (
    Drafted,
    HeadWeights,
    Matrices,
    Rule,
    TokenInputs,
    drafted_length,
)
from engine.memory.state_rows import Extent, StateRows

DELTA, BY_CHANNEL, SPACE = "delta", "by_channel", "space"
MAX_DRAFTS = 3
ROUNDING = torch.finfo(torch.float32).eps / 2
OF_GATES = 48
"""Roundings of a decay's factor and of a beta: a decay is off by at most 64 (`test_gates`), which
its exponential shrinks e-fold, and a beta of a b below 4 by 16."""


class Part(NamedTuple):
    """A row's part of a call: tokens begin:end of a text, from and to slots."""

    text: int
    begin: int
    end: int
    slot: int
    source: int | None = None
    replays: int = 0
    snapshots: Sequence[tuple[int, int]] = ()


def state_rows(parts: Sequence[Part], device: str = "cpu") -> StateRows:
    """The rows of a call with these parts."""
    lens = [part.end - part.begin for part in parts]
    width = max(1, *(len(part.snapshots) for part in parts))
    snapshots = [[*part.snapshots, *[(1 << 60, 0)] * width][:width] for part in parts]

    def tensor(values: object, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    return StateRows(
        starts=tensor([sum(lens[:i]) for i in range(len(lens) + 1)]),
        begins=tensor([part.begin for part in parts], torch.int64),
        sources=tensor([part.slot if part.source is None else part.source for part in parts]),
        slots=tensor([part.slot for part in parts]),
        replays=tensor([part.replays for part in parts]),
        snapshot_ends=tensor([[end for end, _ in row] for row in snapshots], torch.int64),
        snapshot_slots=tensor([[slot for _, slot in row] for row in snapshots]),
    )


def weights_on(device: str, weights: HeadWeights) -> HeadWeights:
    """The weights on a device."""
    a_log, dt_bias, skip = weights
    skip = None if skip is None else skip.to(device)
    return HeadWeights(a_log.to(device), dt_bias.to(device), skip)


def extent_of(parts: Sequence[Part], num_certain: int | None) -> Extent:
    """What the host knows of a call with these parts."""
    return Extent(max(part.end - part.begin for part in parts), num_certain)


Compute = Callable[..., torch.Tensor]


@dataclass
class Texts:
    """Texts whose recurrence is computed call by call, and by the reference as a whole.

    Attributes:
        inputs: of each text. wanted: what the reference reads at each token.
        states: the reference's state after each number of tokens, from 0.
    """

    kind: str
    lens: Sequence[int]
    heads: int = 4
    key_heads: int = 2
    k: int = 12
    v: int = 10
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    num_slots: int = 8
    inputs: list[TokenInputs] = field(init=False)
    wanted: list[torch.Tensor] = field(init=False)
    states: list[list[torch.Tensor]] = field(init=False)
    memory: Matrices = field(init=False)

    def __post_init__(self) -> None:
        is_space, by_channel = self.kind == SPACE, self.kind == BY_CHANNEL
        # Betas up to 2, as with negative eigenvalues.
        self.rule = Rule(not is_space, 1.0 if is_space else self.k**-0.5, beta_scale=2.0)
        self.weights = HeadWeights(
            torch.randn(self.heads),
            torch.randn(self.heads, *((self.k,) if by_channel else ())),
            torch.randn(self.heads) if is_space else None,
        )
        self.inputs = [self._draw(n) for n in self.lens]
        walked = [self._reference(each) for each in self.inputs]
        self.wanted = [out for out, _ in walked]
        self.states = [states for _, states in walked]
        self.memory = self._memory()

    def compute(
        self, compute: Compute, parts: Sequence[Part], num_certain: int | None = None
    ) -> list[torch.Tensor]:
        """Call `compute`; the outputs of each part, on the CPU."""
        pieces = [
            TokenInputs(*(each[part.begin : part.end] for each in self.inputs[part.text]))
            for part in parts
        ]
        packed = TokenInputs(
            *(torch.cat(each).to(self.device) for each in zip(*pieces, strict=True))
        )
        rows = state_rows(parts, self.device)
        extent = extent_of(parts, num_certain)
        out = compute(packed, self.rule, self.weights_there, self.memory, rows, extent)
        assert out.dtype == self.dtype
        return list(torch.split(out.cpu(), [len(piece.v) for piece in pieces]))

    @property
    def weights_there(self) -> HeadWeights:
        """The weights on the device."""
        return weights_on(self.device, self.weights)

    def refuse(self, text: int, begin: int, end: int) -> None:
        """Change the inputs of tokens begin:end, as refused drafts are others than what follows."""
        for each, other in zip(self.inputs[text], self._draw(end - begin), strict=True):
            each[begin:end] = other

    def tolerance(self, text: int) -> dict[str, Any]:
        """Bounds of the outputs' error.

        A state's map to the next is no expansion (decays are at most 1, and so is |1 - beta|), so
        that the roundings of n tokens add up: each token's of K + V + 16 operations and the gates'
        on numbers no larger than the largest state's norm. The output is rounded once more.
        """
        largest = max(float(state.norm()) for state in self.states[text])
        operations = len(self.wanted[text]) * (self.k + self.v + 16 + OF_GATES)
        return {
            "atol": operations * ROUNDING * max(1.0, largest),
            "rtol": torch.finfo(self.dtype).eps,
        }

    def check_state(self, slot: int, text: int, tokens: int) -> None:
        """Compare the state of a slot with the reference's after so many tokens."""
        torch.testing.assert_close(
            self.memory.matrix[slot].cpu().double(),
            self.states[text][tokens],
            **self.tolerance(text) | {"rtol": 0.0},
        )

    def _draw(self, count: int) -> TokenInputs:
        q, k = (torch.randn(count, self.key_heads, self.k) for _ in range(2))
        v = torch.randn(count, self.heads, self.v)
        bias = self.weights.dt_bias
        # Steps of at most 1; or decays from none to more than a state survives.
        steps = torch.rand(count, *bias.shape)
        if self.kind != SPACE:
            rate = self.weights.a_log.exp()
            steps = 10 ** (3 * steps - 1.5) / (rate if bias.dim() == 1 else rate[:, None])
        a = (steps + torch.log(-torch.expm1(-steps))) - bias
        b = a if self.kind == SPACE else 8 * torch.rand(count, self.heads) - 4
        return TokenInputs(*(each.to(self.dtype) for each in (q, k, v, a, b)))

    def _reference(self, inputs: TokenInputs) -> tuple[torch.Tensor, list[torch.Tensor]]:
        (q, k, v, a, b), (a_log, bias, skip), rule = inputs, self.weights, self.rule
        state = torch.zeros(self.heads, self.v, self.k, dtype=torch.float64)
        states, outs = [state], []
        for t in range(len(v)):
            at = slice(t, t + 1)
            if skip is not None:
                steps = reference.space_steps(a[at], bias, rule.step_limits)
                rates = -a_log.double().exp()
                out, state = reference.state_space(v[at], k[at], q[at], steps, rates, skip, state)
            else:
                gates = reference.delta_gates(a[at], b[at], a_log, bias, rule.beta_scale)
                out, state = reference.gated_delta_rule(q[at], k[at], v[at], *gates, state)
            states.append(state)
            outs.append(out)
        return torch.cat(outs), states

    def _memory(self) -> Matrices:
        length = drafted_length(MAX_DRAFTS)

        def filled(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            # Whatever a slot held before must not matter.
            return torch.full(
                (self.num_slots, *shape), torch.finfo(dtype).max, dtype=dtype, device=self.device
            )

        by_channel = (self.k,) if self.kind == BY_CHANNEL else ()
        return Matrices(
            filled(self.heads, self.v, self.k),
            Drafted(
                filled(length, self.key_heads, self.k, dtype=self.dtype),
                filled(length, self.heads, self.v, dtype=self.dtype),
                filled(length, self.heads, *by_channel),
                filled(length, self.heads),
            ),
        )
