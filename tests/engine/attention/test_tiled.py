"""Which steps' keys are divided among programs, and that they attend as plain attention does.

On the CPU a GPU of two processors is pretended, half of which a launch of two programs fills.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.attention.fixed_tiles import FixedTiles
from engine.contracts.attention import AttentionSpec
from engine.kernels import prefill_shares
from engine.kernels.prefill_shares import LONG
from tests.engine.attention.mixed_steps import SPEC, Rows, Step
from tests.engine.kernels.where import DEVICES

CACHED: Rows = [(2 * LONG + 5, 6)]
"""A tile of a row whose keys two shares divide."""


class TiledStep:
    """A step whose rows prefill on our own kernel."""

    def __init__(self, spec: AttentionSpec, rows: Rows, device: str) -> None:
        step = Step(spec, (1, rows), torch.float32, device)
        self._wanted, self._q = step.twin(), step.q
        backend = step.backend()
        backend.begin(step.inputs)
        backend.cells(0).store(step.k, step.v)
        self.layers = backend.tiled

    def attend(self, size: int | None = None) -> bool:
        """Attend in the step's own tiles, or in those of `size` tokens at fixed addresses.

        Returns:
            Whether keys were divided.
        """
        step, scratch = self.layers.step, self.layers._scratch
        assert scratch is not None
        if size is not None:
            fixed = FixedTiles(self.layers.cuts, size, self._q.device)
            assert fixed.put(step, size)
            step = fixed.of_size(size)
        out = torch.full_like(self._q, torch.nan)
        scratch.stats.fill_(torch.nan)
        self.layers.attend(0, self._q, out, step)
        torch.testing.assert_close(out, self._wanted, rtol=1e-4, atol=1e-5)
        assert not scratch.arrivals.any()
        return not bool(scratch.stats.isnan().all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rows", "is_divided"),
    [(CACHED, True), ([(2 * LONG - 1, 6)], False), ([(9, 9)], False)],
)
def test_keys_of_long_rows_are_divided(rows: Rows, is_divided: bool, device: str) -> None:
    assert TiledStep(SPEC, rows, device).attend() == is_divided


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("window", "is_divided"), [(2 * LONG, True), (LONG, False)])
def test_keys_outside_a_window_do_not_count(window: int, is_divided: bool, device: str) -> None:
    spec = replace(SPEC, sliding_window=window)
    assert TiledStep(spec, [(3 * LONG, 6)], device).attend() == is_divided


@pytest.mark.parametrize("device", DEVICES[:1])  # whose number of processors is known
def test_enough_tiles_are_not_divided(device: str) -> None:
    assert not TiledStep(SPEC, [*CACHED, (40, 40)], device).attend()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("rows", "is_divided"), [(CACHED, True), ([(20, 9), *CACHED], True), ([(9, 9)], False)]
)
def test_tiles_at_fixed_addresses_alone_decide(
    rows: Rows, is_divided: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph launches was fixed before its steps were known."""
    monkeypatch.setattr(prefill_shares, "MOST", 40)  # programs a processor
    step = TiledStep(SPEC, rows, device)
    assert step.attend(size=32) == is_divided
    assert step.attend(size=32) == is_divided
