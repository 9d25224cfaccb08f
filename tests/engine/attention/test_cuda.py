"""Mixed steps on the GPU's backend against plain attention.

What an earlier owner of a block left may be NaN, and only plain attention clears it.
In float32 both sum at most some hundred products in different orders. In bfloat16 the weights and
the output are rounded once each, by half of 2^-8.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.attention import cuda, widened
from engine.attention.flashinfer import modules_of
from engine.attention.modules import wait_for_modules
from engine.contracts.attention import AttentionInputs, AttentionSpec
from engine.contracts.shared_blocks import Sharing
from tests.engine.attention.float8 import in_float8
from tests.engine.attention.mixed_steps import SPEC, Rows, Step
from tests.engine.kernels.where import DEVICES

# Query tokens of a decoding row, and the rows.
STEPS: dict[str, tuple[int, Rows]] = {
    "decode": (1, [(1, 1), (70, 1), (33, 1)]),
    "prefill": (1, [(31, 31), (17, 17)]),
    "chunks": (1, [(50, 20), (200, 7), (64, 64)]),
    "mixed": (1, [(9, 1), (100, 1), (16, 16), (90, 33), (40, 5)]),
    "verification": (5, [(70, 5), (5, 5), (33, 5), (66, 5)]),
    "verification and prefill": (5, [(70, 5), (33, 5), (40, 16), (31, 31), (7, 5), (12, 1)]),
    "no drafts": (5, [(70, 1), (16, 16)]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", [SPEC, replace(SPEC, sliding_window=19)])
@pytest.mark.parametrize("name", STEPS)
def test_float32(name: str, spec: AttentionSpec, device: str) -> None:
    step = Step(spec, STEPS[name], torch.float32, device)
    wanted = step.twin()
    torch.testing.assert_close(step.attend(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("unplanned", [0, 1 << 38])
def test_bfloat16_through_flashinfer_and_without(
    monkeypatch: pytest.MonkeyPatch, name: str, head_dim: int, unplanned: int
) -> None:
    pytest.importorskip("flashinfer")
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", unplanned)
    spec = replace(SPEC, head_dim=head_dim)
    step = Step(spec, STEPS[name], torch.bfloat16, "cuda")
    wanted = step.twin()
    torch.testing.assert_close(step.attend().float(), wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.gpu
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("name", ["prefill", "chunks", "mixed"])
def test_float8_keys_through_flashinfer(
    name: str, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flashinfer")
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", 0)
    if not has_room:
        monkeypatch.setattr(widened, "NUM_BYTES", 1)
    step = Step(replace(SPEC, head_dim=128), STEPS[name], torch.bfloat16, "cuda")
    wanted = step.in_plain(in_float8(step.clean(torch.bfloat16), [step.spec]))
    step.cache = in_float8(step.cache, [step.spec])
    wait_for_modules(modules_of([step.spec], torch.bfloat16, step.q.device))
    backend = step.backend()
    out = step.attend_by(backend)
    assert backend._planned == ({0} if has_room else set())
    torch.testing.assert_close(out, wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.gpu
def test_layers_flashinfer_cannot_express_are_tiled() -> None:
    sinks = torch.tensor([0.5, -1.0, 3.0, 0.0], device="cuda")
    step = Step(replace(SPEC, sinks=sinks), STEPS["mixed"], torch.bfloat16, "cuda")
    wanted = step.twin()
    torch.testing.assert_close(step.attend().float(), wanted, rtol=2**-7, atol=2**-7)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 19])  # windows attend to shared blocks row by row
def test_shared_blocks_are_read_once_and_change_nothing(window: int | None) -> None:
    pytest.importorskip("flashinfer")
    rows = [(80, 16), (65, 1), (140, 70), (70, 5), (67, 1)]
    spec = replace(SPEC, head_dim=128, sliding_window=window)
    step = Step(spec, (0, rows), torch.bfloat16, "cuda")
    step.inputs.block_tables[:, :4] = step.inputs.block_tables[0, :4]
    sharing = Sharing(np.array([0, len(rows)]), np.array([4], dtype=np.int32))
    step.inputs = replace(step.inputs, sharing=sharing)
    wanted = step.twin()
    # The two parts are rounded before they are joined.
    torch.testing.assert_close(step.attend().float(), wanted, rtol=2**-6, atol=2**-6)


PAIRS = 16 * 16 + 33 * 90 + 5 * 40
"""Of queries and keys of the rows of the step `mixed` that prefill."""
PLANNED = [(PAIRS, False, False), (PAIRS - 1, False, True), (PAIRS, True, True)]


class LateFlashInfer:
    """Stands for FlashInfer whose modules come late: it fills its part of the output with ones."""

    layers = frozenset({0})

    def __init__(self) -> None:
        self.loaded: bool | Exception = False

    @property
    def is_loaded(self) -> bool:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded

    def compile(self) -> None:
        """Nothing."""

    def has_room(self, inputs: AttentionInputs) -> bool:
        return True

    def begin(self, inputs: AttentionInputs) -> None:
        """Nothing."""

    def attend(self, layer: int, q: torch.Tensor, out: torch.Tensor) -> None:
        out.fill_(1.0)


@pytest.mark.parametrize("device", DEVICES)
def test_flashinfer_takes_over_between_two_steps(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LateFlashInfer()
    monkeypatch.setattr(cuda, "_flashinfer_prefill", lambda specs, cache: late)
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", 0)
    step = Step(SPEC, STEPS["mixed"], torch.float32, device)
    backend, wanted = step.backend(), step.twin()
    backend.begin(step.inputs)
    late.loaded = True  # within a step, whose layers must all go the same way
    own = backend.attend(0, step.q, step.k, step.v)
    torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-5)
    taken = step.attend_by(backend)
    torch.testing.assert_close(taken[:2], wanted[:2], rtol=1e-4, atol=1e-5)  # rows that decode
    assert (taken[2:] == 1.0).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("num_pairs", "shared", "is_planned"), PLANNED)
def test_only_long_steps_and_shared_blocks_pay_for_a_plan(
    num_pairs: int, shared: bool, is_planned: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LateFlashInfer()
    late.loaded = True
    monkeypatch.setattr(cuda, "_flashinfer_prefill", lambda specs, cache: late)
    # A query and a key take a multiplication and an addition for each of D, and so do the values.
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", num_pairs * 4 * SPEC.num_q_heads * SPEC.head_dim)
    step = Step(SPEC, STEPS["mixed"], torch.float32, device)
    if shared:
        sharing = Sharing(np.array([5, 5]), np.array([0], dtype=np.int32))
        step.inputs = replace(step.inputs, sharing=sharing)
    wanted = step.twin()
    found = step.attend_by(step.backend())[2:]  # after the rows that decode
    if is_planned:
        assert (found == 1.0).all()
    else:
        torch.testing.assert_close(found, wanted[2:], rtol=1e-4, atol=1e-5)


def test_tiles_are_told_where_all_rows_and_layers_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = LateFlashInfer()
    monkeypatch.setattr(cuda, "_flashinfer_prefill", lambda specs, cache: late)
    monkeypatch.setattr(cuda, "launch_kernels", lambda specs, cache: None)
    monkeypatch.setattr(cuda, "compiling_together", contextlib.nullcontext)
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", 0)
    for name, (decode_len, rows) in STEPS.items():
        step = Step(SPEC, STEPS[name], torch.float32, "cpu")
        late.loaded = False
        backend = step.backend()
        backend.begin(step.inputs)
        assert (backend.tiled_step is None) == (rows[0][1] == decode_len), name
        late.loaded = True
        backend.begin(step.inputs)
        assert backend.tiled_step is None, name


@pytest.mark.parametrize("device", DEVICES)
def test_our_kernel_stays_where_flashinfer_cannot_be_built(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    late = LateFlashInfer()
    monkeypatch.setattr(cuda, "_flashinfer_prefill", lambda specs, cache: late)
    step = Step(SPEC, STEPS["mixed"], torch.float32, device)
    backend, wanted = step.backend(), step.twin()
    late.loaded = RuntimeError("Ninja build failed.\nnvcc: not found")
    for _ in range(2):
        torch.testing.assert_close(step.attend_by(backend), wanted, rtol=1e-4, atol=1e-5)
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert record.getMessage().endswith("Ninja build failed.")
