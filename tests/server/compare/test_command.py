"""`tailrace compare-logprobs` against a server over the fake engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import ConfigError
from server.compare.command import run_compare
from server.compare.distance import compared, distance, explanations, is_shifted
from server.compare.records import TrainerSequence, read_sequences
from tests.server.conftest import Site, on_a_port

TOKENS = list(b"hello world")


async def values_of(site: Site) -> list[float]:
    """The server's values of all tokens but the first."""
    wanted: dict[str, Any] = {"max_tokens": 0, "prompt_logprobs": 0}
    body = {"token_ids": TOKENS, "sampling_params": wanted}
    reply = await site.client.post("/inference/v1/generate", json=body)
    entries = reply.json()["prompt_logprobs"][1:]
    return [next(iter(entry.values()))["logprob"] for entry in entries]


async def run(site: Site, path: Path, *lines: dict[str, Any]) -> int:
    await asyncio.to_thread(path.write_text, "\n".join(map(json.dumps, lines)))
    flags = {
        "file": path,
        "base_url": site.url,
        "model": None,
        "api_key": None,
        "temperature": 1.0,
        "worst": 2,
        "json": True,
    }
    return await asyncio.to_thread(run_compare, flags)


async def test_equal_values_have_no_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with on_a_port() as site:
        values = await values_of(site)
        line = {"token_ids": TOKENS, "logprobs": values[4:]}
        assert await run(site, tmp_path / "f", line, {**line, "start": 5}) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_tokens"], found["worst"], found["ratio"], found["shift"]) == (
        12,
        0.0,
        0.0,
        0,
    )
    assert found["sequences"][1]["positions"] == [5, 6, 7, 8, 9, 10]
    assert found["sequences"][0]["server"] == values[4:]


async def test_a_gap_beyond_what_is_explained_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with on_a_port() as site:
        values: list[float | None] = [*(await values_of(site))]
        values[3], values[7] = None, (values[7] or 0.0) + 0.5
        assert await run(site, tmp_path / "f", {"token_ids": TOKENS, "logprobs": values}) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["num_tokens"], found["unexplained"]) == (9, 1)
    assert found["worst"] == pytest.approx(0.5)
    assert found["bias"] == pytest.approx(0.5 / 9)
    assert found["ratio"] == pytest.approx(np.expm1(0.5) / 9)


async def test_values_of_the_next_position_are_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with on_a_port() as site:
        values = await values_of(site)
        shifted = {"token_ids": TOKENS, "logprobs": [*values[1:], 0.0]}
        await run(site, tmp_path / "f", shifted)
    assert json.loads(capsys.readouterr().out)["shift"] == -1


def test_distance_is_by_its_formulas() -> None:
    gaps = np.array([0.1, -0.2])
    found = distance(gaps)
    assert found.mean == pytest.approx(0.15)
    assert found.kl == pytest.approx((np.exp(gaps) - 1 - gaps).mean())
    assert found.kl > 0
    assert distance(np.zeros(0)).num_tokens == 0


def test_a_quantized_server_explains_more() -> None:
    one = compared(0, TrainerSequence([1, 2], [-1.0]), np.array([-1.0]), np.array([-1.25]))
    about = {"dtype": "bfloat16", "quantization": {"scheme": "fp8", "max_logprob_gap": 0.3}}
    dtype, batch, formats = explanations(about, [one])
    assert "bfloat16" in dtype.cause
    assert batch.nats == pytest.approx(0.25)
    assert (formats.nats, "fp8" in formats.cause) == (0.3, True)
    assert is_shifted([one]) == 0, "a single value fits any shift"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"token_ids": [1, 2]}', "logprobs"),
        ('{"token_ids": [1, 2], "logprobs": [-1, -1]}', "the first token has none"),
        ('{"token_ids": [1, 2], "logprobs": [-1], "start": 2}', "from position 2"),
        ("[]", "line 1"),
        ('{"token_ids": [1, 2], "logprobs": [NaN]}', "line 1: NaN is not a finite number; null"),
        ('{"token_ids": [1, 2], "logprobs": [-Infinity]}', "-Infinity is not a finite number"),
        ('{"token_ids": [1, 2], "logprobs": [Infinity]', "Infinity is not a finite number"),
        ('{"token_ids": [1, 2], "logprobs": [1e999]}', "out of range - at `$.logprobs[0]`"),
        ('{"token_ids": [1, 2], "logprobs": [nan]}', "invalid character (byte"),
        ('{"a": ' * 100_000, "recursion depth"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "f"
    path.write_text(line)
    with pytest.raises(ConfigError, match=r"line 1") as caught:
        list(read_sequences(path))
    assert words in str(caught.value)
