"""Verification on its kernels equals plain torch: tokens, flags, logprobs and counts.

Both take the same noise. A decision may differ where two keys, or a uniform and a ratio, are
closer than the error of the float32 tile masses, at most 2**-17 each (see `sampling.race`): odds
below 0.01 over all decisions here. The seeds are fixed, so the outcome is fixed too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from sampling.batch import NOTHING_ALLOWED, UNUSABLE_LOGITS, Verification
from sampling.device.triton_support import INTERPRETED
from sampling.paths import triton_path
from sampling.speculative import verification
from sampling.speculative.verification import Method
from tests.sampling.bounds import watch_bounds
from tests.sampling.kernel_cases import DEVICES, EDITS, KEPT_ERROR
from tests.sampling.speculative.speculated_steps import Step, random_step

pytestmark = [
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(), reason="needs Triton's interpreter"
    ),
    # The interpreter computes with numpy, which warns where a GPU gives NaN or 0 in silence.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
NUM_ROWS, K = 13, 2
RATES = [0.9, 0.5]
WISHES: dict[str, list[dict[str, Any]]] = {
    "plain": [{}, {"temperature": 0.7}],
    "greedy": [{"temperature": 0.0}],
    "greedy beside random": [{"temperature": 0.0}, {}, {"temperature": 0.3}],
    "filters": [{"top_k": 5}, {"top_p": 0.9, "temperature": 2.0}, {"min_p": 0.1}, {}],
    "edits": [EDITS | {"top_p": 0.9}, {"allowed_token_ids": tuple(range(0, 100, 3))}, EDITS],
    "raw logprobs": [{"logprobs": 5}, {"logprobs": 0, "logprob_token_ids": (1, 1, 8)}, {}],
    "processed logprobs": [
        EDITS | {"logprobs": 3, "logprobs_mode": "processed_logprobs", "top_k": 9},
        {"logprobs": 2, "logprobs_mode": "processed_logits", "temperature": 0.5},
        {"logprobs": 2, "logprobs_mode": "raw_logits", "temperature": 0.0},
    ],
    "grammar": [
        {"constrained": True, "kept_logprob": True, "temperature": 0.7, "top_p": 0.9},
        {"constrained": True, "temperature": 0.0, "kept_logprob": True},
        EDITS | {"constrained": True, "kept_logprob": True},
        {"kept_logprob": True, "allowed_token_ids": tuple(range(0, 100, 3))},
    ],
}
METHODS: dict[str, tuple[Method, bool]] = {
    "draft logits": ("standard", True),
    "one-hot": ("standard", False),
    "block": ("block", True),
    "synthetic, draft logits": ("synthetic", True),
    "synthetic": ("synthetic", False),
    "coupled": ("coupled", False),
}
CASES = [
    *(("draft logits", name, 111) for name in WISHES),
    *(("one-hot", name, 111) for name in ("plain", "greedy beside random", "edits", "grammar")),
    *(("block", name, 111) for name in ("plain", "greedy beside random", "filters", "grammar")),
    ("block", "edits", 1500),
    ("synthetic, draft logits", "greedy beside random", 111),
    ("coupled", "greedy beside random", 111),
    ("coupled", "processed logprobs", 111),
    ("coupled", "grammar", 1500),
    ("draft logits", "edits", 1500),
    ("one-hot", "raw logprobs", 1500),
    ("coupled", "filters", 1500),
    ("synthetic", "plain", 1500),
]


def make_step(wishes: list[dict[str, Any]], vocab_size: int, has_draft_logits: bool) -> Step:
    """A step with missing drafts, little room, bad draft logits and bad logits, each somewhere."""
    step = random_step(wishes, NUM_ROWS, K, vocab_size, has_draft_logits=has_draft_logits)
    step.draft_ids[2, 1] = -1
    step.draft_ids[3, 0] = vocab_size
    if step.draft_logits is not None:
        step.draft_logits[7, 0, 3] = torch.nan
        step.draft_logits[9, 0] = -torch.inf
    room = torch.full((NUM_ROWS,), K + 1)
    room[1], room[4] = 2, 1
    step.logits[:, vocab_size:] = torch.nan  # columns beyond the vocabulary are never read
    step.logits[0, 7] = torch.nan  # row 0 has no token
    step.logits[8 * (K + 1) - K + 1, 5] = torch.inf  # row 8 fails at depth 1, if it gets there
    allowed: list[list[int] | None] = []
    if any("constrained" in wish for wish in wishes):
        allowed = allowed_ids(len(step.logits), vocab_size)
    return replace(step, room=room, allowed=allowed)


def allowed_ids(num_logits: int, vocab_size: int) -> list[list[int] | None]:
    """Masks that allow half of the ids, nothing at row 12's first token, everything somewhere."""
    generator = torch.Generator().manual_seed(5)
    allowed: list[list[int] | None] = [
        torch.randint(0, vocab_size, (vocab_size,), generator=generator).tolist()
        for _ in range(num_logits)
    ]
    allowed[7], allowed[num_logits - 1 - K] = None, []
    return allowed


def assert_equal(ours: Verification, wanted: Verification, step: Step) -> None:
    assert ours.bad.tolist() == wanted.bad.tolist()
    assert ours.num_new.tolist() == wanted.num_new.tolist()
    assert ours.num_accepted.tolist() == wanted.num_accepted.tolist()
    assert ours.token_ids.tolist() == wanted.token_ids.tolist()
    if wanted.logprobs is None:
        assert ours.logprobs is None
        return
    assert ours.logprobs is not None
    lengths = step.num_drafts.long() + 1
    starts = lengths.cumsum(0) - lengths
    kept = [
        start + depth
        for row, start in enumerate(starts.tolist())
        for depth in range(int(wanted.num_new[row]))
        if step.params[row].logprobs is not None or step.params[row].kept_logprob
    ]
    assert kept
    for name, want in wanted.logprobs._asdict().items():
        have = getattr(ours.logprobs, name).cpu()[kept]
        if want.dtype == torch.int32:
            assert torch.equal(have, want[kept]), name
        else:  # values are float32(x - offset); the offsets' masses agree to 2**-18
            atol = KEPT_ERROR if name == "kept" else 1e-5
            torch.testing.assert_close(have, want[kept], rtol=1e-6, atol=atol)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("how", "name", "vocab_size"), CASES)
def test_kernels_equal_plain_torch(
    vocab_size: int, how: str, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, has_draft_logits = METHODS[how]
    step = make_step(WISHES[name], vocab_size, has_draft_logits)
    step.logits = step.logits.to(torch.bfloat16 if vocab_size > 1000 else torch.float32)
    rates = RATES if method == "synthetic" else None
    ours, rows = step.verify(method, rates, torch.device(device))
    with monkeypatch.context() as plain:
        plain.setattr(verification, "kernels_run_on", lambda device: False)
        wanted, wanted_rows = step.verify(method, rates)
    assert_equal(ours, wanted, step)
    codes = {0, UNUSABLE_LOGITS, NOTHING_ALLOWED} if name == "grammar" else {0, UNUSABLE_LOGITS}
    assert set(wanted.bad.tolist()) == codes
    assert torch.equal(rows.counts.words.cpu(), wanted_rows.counts.words)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize(("name", "vocab_size"), [("plain", 111), ("filters", 1500)])
def test_one_hot_drafts_leave_the_plain_sampler_s_tokens(
    name: str, vocab_size: int, method: Method, device: str
) -> None:
    """Bit for bit; a draft is kept where it is that token, and the first that is not ends a run."""
    step = make_step(WISHES[name], vocab_size, has_draft_logits=False)
    verified, _ = step.verify(method, device=torch.device(device))
    batch, rows, drafts = step.make(torch.device(device))
    plain = triton_path.draw(step.logits.to(device), batch, rows).token_ids.tolist()
    found: set[int] = set()
    for row, start in enumerate(drafts.starts.tolist()):
        num_new, num_accepted = int(verified.num_new[row]), int(verified.num_accepted[row])
        assert verified.token_ids[row].tolist()[:num_new] == plain[start : start + num_new]
        assert plain[start : start + num_accepted] == step.draft_ids[row, :num_accepted].tolist()
        if num_accepted < num_new <= int(step.num_drafts[row]):
            assert plain[start + num_accepted] != int(step.draft_ids[row, num_accepted])
        found.add(num_new)
    assert found == {0, 1, 2, 3}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["draft logits", "block"])
def test_fewer_drafts_are_verified_than_draft_logits_are_kept(
    how: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of depths beyond, which were made for a step with more drafts, are not read."""
    method, _ = METHODS[how]
    step = make_step(WISHES["plain"], 111, has_draft_logits=True)
    assert step.draft_logits is not None
    wanted, _ = step.verify(method, device=torch.device(device))
    step.draft_logits = F.pad(step.draft_logits, (0, 0, 0, 3), value=torch.nan)
    found, _ = step.verify(method, device=torch.device(device))
    assert_equal(found, wanted, step)
    monkeypatch.setattr(verification, "kernels_run_on", lambda device: False)
    assert_equal(step.verify(method)[0], wanted, step)


@pytest.mark.parametrize("device", DEVICES)
def test_penalties_count_the_drafts_before_a_depth(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish: dict[str, Any] = {
        "repetition_penalty": 1.2,
        "frequency_penalty": 1.5,
        "presence_penalty": 1.0,
    }
    wish |= {"logprobs": 3, "logprobs_mode": "processed_logits"}
    step = random_step([wish], 8, K, 60, has_draft_logits=False, likely=4.0, alike=True)
    ours, _ = step.verify(device=torch.device(device))
    monkeypatch.setattr(verification, "kernels_run_on", lambda device: False)
    wanted, _ = step.verify()
    assert_equal(ours, wanted, step)
    forgotten, _ = replace(step, counted=False).verify()
    assert not torch.equal(forgotten.num_new, wanted.num_new)


@pytest.mark.skipif(not INTERPRETED, reason="watches the interpreter")
@pytest.mark.parametrize("how", ["draft logits", "block", "one-hot", "coupled"])
def test_kernels_stay_inside_their_tensors(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All features at once, with fewer explicit ids and top tokens than their buckets hold."""
    everything = EDITS | {"top_k": 50, "top_p": 0.9, "min_p": 0.01, "logprobs": 3}
    everything |= {"logprob_token_ids": (0,) * 17, "logprobs_mode": "processed_logprobs"}
    masked = {"allowed_token_ids": (1, 5, 9), "logprobs": 20, "logprobs_mode": "processed_logits"}
    strayed = watch_bounds(monkeypatch)
    method, has_draft_logits = METHODS[how]
    make_step([everything, masked, {}], 1500, has_draft_logits).verify(method)
    assert strayed == set()
