"""Logprobs against a float64 computation by a full sort. Nothing here is random in outcome."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sampling.batch import LogprobsOutput
from sampling.params import LogprobsMode
from sampling.paths.logprobs import gather_logprobs, prompt_logprobs
from sampling.race import log_sum_exp, tile_masses

WIDTHS = [1, 7, 111, 1024, 8193]
INF = float("inf")


def reference(
    values: Tensor, token_ids: Tensor, k: int, explicit: Tensor, normalized: bool = True
) -> list[dict[str, Any]]:
    """Compute what each row reports in float64, in the order (value descending, id ascending)."""
    rows = []
    for x, token, ids in zip(values.double().numpy(), token_ids, explicit, strict=True):
        reported = x - (np.logaddexp.reduce(x) if normalized else 0.0)
        order = np.lexsort((np.arange(len(x)), -x))
        rows.append(
            {
                "chosen": reported[token],
                "rank": int(np.flatnonzero(order == int(token))[0]) + 1,
                "top_ids": order[:k],
                "top": reported[order[:k]],
                "explicit": reported[ids.numpy()],
            }
        )
    return rows


def gather(values: Tensor, tokens: Tensor, num_top: int, ids: Tensor | None) -> LogprobsOutput:
    """Gather logprobs with the offsets that the sampler computes."""
    neutral = torch.ones(len(values), dtype=torch.float64)
    offsets = log_sum_exp(tile_masses(values.float(), neutral), neutral)
    return gather_logprobs(values, offsets, tokens, num_top=num_top, explicit_ids=ids)


def check(out: LogprobsOutput, expected: list[dict[str, Any]]) -> None:
    assert len(out.ranks) == len(out.chosen) == len(out.top_ids) == len(expected) > 0
    for i, row in enumerate(expected):
        assert out.ranks[i].item() == row["rank"]
        assert out.top_ids[i].tolist() == row["top_ids"].tolist()
        for got, want in (
            (out.chosen[i], row["chosen"]),
            (out.top_logprobs[i], row["top"]),
            (out.explicit[i], row["explicit"]),
        ):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def make_logits(n: int, width: int, *, scale: float = 3.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, width, generator=generator) * scale


def make_ids(n: int, width: int, count: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, width, (n, count), generator=generator)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("k", [0, 1, 5, 128])
@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
def test_values_equal_the_float64_reference(width: int, k: int, mode: LogprobsMode) -> None:
    x, tokens, explicit = make_logits(5, width), make_ids(5, width, 1)[:, 0], make_ids(5, width, 9)
    out = prompt_logprobs(
        x, tokens.int(), num_top=k, explicit_ids=explicit, normalized=mode == "raw_logprobs"
    )
    assert out.top_ids.shape == (5, min(k, width))
    assert (out.ranks.dtype, out.top_ids.dtype) == (torch.int32, torch.int32)
    check(out, reference(x, tokens, k, explicit, mode == "raw_logprobs"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ties_keep_the_lowest_ids_across_the_boundary(dtype: torch.dtype) -> None:
    # Few distinct values, so every list ends inside a run of equals, over chunks and tiles.
    x = make_logits(6, 3000, scale=1.0).round().to(dtype)
    x[0] = 0.0
    x[1, ::2] = -0.0  # equal to 0.0
    x[1, 1::2] = 0.0
    tokens, explicit = make_ids(6, 3000, 1)[:, 0], make_ids(6, 3000, 3)
    for k in (1, 20, 100):
        check(gather(x, tokens, k, explicit), reference(x, tokens, k, explicit))


def test_every_number_of_a_row_is_bit_equal() -> None:
    x = make_logits(8, 5000)
    tokens = x.topk(8).indices.diagonal()
    explicit = torch.cat((tokens[:, None], make_ids(8, 5000, 127)), dim=1)
    out = gather(x, tokens, 20, explicit)
    in_list = out.top_logprobs.gather(1, out.ranks.long()[:, None] - 1)[:, 0]
    assert out.top_ids.shape == (8, 20)
    assert torch.equal(in_list, out.chosen)
    assert torch.equal(out.explicit[:, 0], out.chosen)
    assert out.ranks.tolist() == list(range(1, 9))


def test_a_prompt_token_has_the_value_it_was_drawn_with() -> None:
    x, tokens, explicit = make_logits(8, 5000), make_ids(8, 5000, 1)[:, 0], make_ids(8, 5000, 4)
    of_prompt = prompt_logprobs(x, tokens, num_top=20, explicit_ids=explicit)
    for mine, theirs in zip(of_prompt, gather(x, tokens, 20, explicit), strict=True):
        assert torch.equal(mine, theirs)


def test_a_row_does_not_depend_on_its_neighbours_or_strides() -> None:
    x, tokens = make_logits(16, 4100), make_ids(16, 4100, 1)[:, 0]
    padded = torch.full((16, 5000), INF)
    padded[:, :4100] = x
    whole = gather(padded[:, :4100], tokens, 5, None)
    assert whole.top_ids.shape == (16, 5)
    for i in range(16):
        alone = gather(x[i : i + 1], tokens[i : i + 1], 5, None)
        for mine, theirs in zip(alone, whole, strict=True):
            assert torch.equal(mine[0], theirs[i])


def test_masked_tokens_stay_minus_infinity() -> None:
    x = make_logits(3, 2500)
    x[:, 3:2000] = -INF
    x[2] = -INF
    tokens = torch.tensor([0, 2400, 7])
    out = gather(x, tokens, 4, torch.tensor([[5, -1, 2500]] * 3))
    assert (out.explicit == -INF).all()
    assert out.chosen.isfinite().tolist() == [True, True, False]
    assert out.explicit.shape == (3, 3)
    assert out.top_ids[2].tolist() == [0, 1, 2, 3]
    assert (out.top_logprobs[2] == -INF).all()
    assert out.ranks[2].item() == 8


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_a_bad_row_stays_in_range_and_alone(bad: float) -> None:
    x, tokens = make_logits(3, 2500), torch.tensor([1, 2, 3])
    clean = gather(x, tokens, 5, None)
    x[1, 17:40] = bad
    out = gather(x, tokens, 5, None)
    assert out.top_ids.shape == (3, 5)
    assert ((out.top_ids >= 0) & (out.top_ids < 2500)).all()
    for mine, theirs in zip(out, clean, strict=True):
        assert torch.equal(mine[::2], theirs[::2])


def test_large_logits_lose_nothing() -> None:
    x = torch.tensor([[3e38, 3e38, -3e37, 1.0], [-3e38, -3e38, -3e38, -3e38], [88.0, -88.0, 0, 0]])
    tokens, explicit = torch.tensor([0, 3, 1]), torch.tensor([[0, 1, 2]] * 3)
    check(gather(x, tokens, 2, explicit), reference(x, tokens, 2, explicit))


def test_shared_explicit_ids_of_prompt_positions() -> None:
    x, targets = make_logits(6, 300), make_ids(6, 300, 1)[:, 0]
    ids = torch.tensor([4, 4, 299])
    out = prompt_logprobs(x, targets, explicit_ids=ids, normalized=False)
    assert torch.equal(out.explicit, x[:, ids])
    assert torch.equal(out.chosen, x.gather(1, targets[:, None])[:, 0])
    assert out.top_ids.shape == (6, 0)


def test_a_large_offset_costs_no_digits() -> None:
    """Values near 0 beside a log-sum-exp of hundreds, which float32 would round by 3e-5."""
    x = make_logits(64, 4096, scale=1.0) + torch.linspace(300, 900, 64)[:, None]
    tokens = x.argmax(1)
    out = prompt_logprobs(x, tokens, num_top=3)
    want = (x.double() - x.double().logsumexp(1, keepdim=True)).gather(1, tokens[:, None])[:, 0]
    error = (out.chosen.double() - want).abs() / want.abs().clamp(min=1)
    assert error.max() < 1e-5
