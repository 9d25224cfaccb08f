"""Test vectors of the noise contract (`docs/noise.md`), made by the sampler itself.

    python -m website.noise_vectors

writes them to `docs/noise.json`; a test holds the file and this module together, another one an
implementation that was written from the page alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sampling import noise
from sampling.batch import SamplingBatch
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, NoiseKey, Purpose, stream
from sampling.params import SamplingParams
from sampling.rows import SamplingRows
from sampling.sampler import Sampler, SamplerConfig
from sampling.speculative import draws
from sampling.speculative.draws import Distribution

FILE = Path(__file__).parent.parent / "docs" / "noise.json"
CONTRACT = 1
"""The contract's version; another contract has another one."""
LEVELS = {"tile": LEVEL_TILE, "token": LEVEL_TOKEN}
CPU = torch.device("cpu")
SEEDS = (0, 1, -1, 2**32 + 5, 2**63 - 1, -(2**63), 20261124)

Case = dict[str, Any]


def vectors() -> dict[str, Any]:
    """Everything the file holds."""
    return {
        "contract": CONTRACT,
        "philox": _philox(),
        "uniforms": _uniforms(),
        "draws": [_draw(case) for case in DRAWS],
        "verifications": [_verification(case) for case in VERIFICATIONS],
    }


def _philox() -> list[Case]:
    counters = [(0, 0, 0, 0), (2**32 - 1,) * 4, (512, 17, 3, 1), (7, 2**31, 0, 2 | 5 << 8)]
    keys = [(0, 0), (2**32 - 1,) * 2, (20261124, 0), (5, 1)]
    cases = []
    for counter, key in zip(counters, keys, strict=True):
        columns = [np.array([word], dtype=np.uint64) for word in (*counter, *key)]
        words = noise.philox(tuple(columns[:4]), tuple(columns[4:]))  # type: ignore[arg-type]
        cases.append({"counter": counter, "key": key, "words": words[:, 0].tolist()})
    return cases


def _uniforms() -> list[Case]:
    cases = []
    for i, seed in enumerate(SEEDS):
        for purpose in Purpose:
            level = "token" if (i + purpose) % 2 and purpose is not Purpose.ACCEPT else "tile"
            depth = 0 if purpose in (Purpose.TARGET, Purpose.RESIDUAL) else (i * 3) % 5
            index = 0 if purpose is Purpose.ACCEPT else (1, 2, 1023, 1024, 151_935)[i % 5]
            position, choice = (0, 5, 2**20 + 1)[i % 3], (0, 1, 7)[(i + purpose) % 3]
            key = _key(seed, position, choice)
            stream_id = stream(purpose, LEVELS[level], depth)
            cases.append(
                {
                    "seed": str(seed),
                    "position": position,
                    "choice": choice,
                    "purpose": purpose.name.lower(),
                    "level": level,
                    "depth": depth,
                    "index": index,
                    "stream": stream_id,
                    "uniform": float(noise.uniforms(key, index, 1, stream_id)),
                    "exponential": float(noise.exponentials(key, index, 1, stream_id)),
                }
            )
    return cases


def _key(seed: int, position: int, choice: int) -> NoiseKey:
    return NoiseKey(torch.tensor([seed]), torch.tensor([position]), torch.tensor([choice]))


def logits_of(size: int, multiplier: int) -> torch.Tensor:
    """The logits of a case by the page's formula, float32 [size] in [-8, 8)."""
    ids = torch.arange(size)
    return ((ids * multiplier + 12_345) % 2**16).float() / 2**12 - 8.0


DRAWS: tuple[Case, ...] = (
    *(
        {"size": size, "multiplier": multiplier, "seed": seed, "choice": choice}
        for size, multiplier, seed, choice in (
            (11, 7919, 1, 0),
            (1024, 40_503, -5, 1),
            (1025, 40_503, 2**63 - 1, 0),
            (5000, 25_173, -(2**63), 3),
            (32_003, 25_173, 20261124, 0),
        )
    ),
    {"size": 5000, "multiplier": 25_173, "seed": 3, "temperature": 0.0},
    {"size": 5000, "multiplier": 25_173, "seed": 3, "temperature": 0.4},
    {"size": 5000, "multiplier": 25_173, "seed": 33, "temperature": 1.7, "top_k": 40},
    {"size": 5000, "multiplier": 25_173, "seed": 17, "temperature": 2.0, "top_p": 0.6},
    {"size": 5000, "multiplier": 25_173, "seed": 4, "temperature": 2.0, "min_p": 0.3},
    {
        "size": 5000,
        "multiplier": 25_173,
        "seed": 32,
        "temperature": 3.0,
        "top_k": 900,
        "top_p": 0.8,
        "min_p": 0.01,
    },
    {"size": 70_000, "multiplier": 0, "seed": 8, "top_k": 3},  # equal logits: the lowest ids stay
    {
        "size": 40,
        "multiplier": 7919,
        "seed": 239,
        "prompt": [1, 2, 2, 39],
        "output": [5, 5, 7, 39, 14],
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {"3": 2.5, "39": -1.0},
    },
    {
        "size": 3000,
        "multiplier": 7919,
        "seed": 3,
        "temperature": 8.0,
        "allowed_token_ids": [3, 900, 1023, 1024, 2999],
        "bad_words": [[900], [4, 1024]],
        "output": [8, 4],
        "min_tokens": 3,
        "stop_token_ids": [3],
    },
)


def _draw(case: Case) -> Case:
    case = {"choice": 0, "prompt": [1, 2, 3], "output": [], **case}
    own = dict(case)
    size, multiplier, seed, choice, prompt, output = (
        own.pop(name) for name in ("size", "multiplier", "seed", "choice", "prompt", "output")
    )
    own["logit_bias"] = {int(key): bias for key, bias in own.get("logit_bias", {}).items()}
    for name in ("allowed_token_ids", "stop_token_ids"):
        if name in own:
            own[name] = tuple(own[name])
    own["bad_words"] = tuple(map(tuple, own.get("bad_words", ())))
    params = SamplingParams(seed=seed, **own)
    token_id = _drawn(logits_of(size, multiplier), params, choice, prompt, output)
    return {**case, "seed": str(seed), "token": token_id}


def _drawn(
    logits: torch.Tensor, params: SamplingParams, choice: int, prompt: list[int], output: list[int]
) -> int:
    """The token that the sampler draws after a prompt and the output so far."""
    history = torch.tensor([[*prompt, *output, 0]], dtype=torch.int32)
    position = len(prompt) + len(output)
    rows = SamplingRows(1, len(logits), CPU, history=history)
    assert params.seed is not None
    rows.add(
        0,
        params,
        seed=params.seed,
        choice=choice,
        prompt_len=len(prompt),
        num_tokens=position,
    )
    rows.flush()
    rows_np = np.zeros(1, dtype=np.int32)
    batch = SamplingBatch(
        torch.zeros(1, dtype=torch.int32), torch.tensor([position]), rows_np, rows.needs(rows_np)
    )
    return int(Sampler(SamplerConfig(), rows)(logits[None], batch).token_ids[0])


VERIFICATIONS: tuple[Case, ...] = tuple(
    {
        "size": 3000,
        "multiplier": 25_173,
        "draft_multiplier": draft_multiplier,
        "seed": seed,
        "choice": seed % 2,
        "position": 9 + seed,
        "depth": seed % 3,
        "draft": draft,
    }
    for draft_multiplier, seed, draft in (
        (7919, 1, 2049),
        (7919, 2, 7),
        (40_503, 3, 2049),
        (40_503, 4, 1313),
        (25_173, 5, 17),
    )
)


def _verification(case: Case) -> Case:
    """Whether a draft is accepted, and the token drawn in its place where it is refused."""
    one = torch.ones(1, dtype=torch.float64)
    target = Distribution.of(logits_of(case["size"], case["multiplier"])[None], one)
    draft = Distribution.of(logits_of(case["size"], case["draft_multiplier"])[None], one)
    token = torch.tensor([case["draft"]])
    seed, position, depth, choice = (case[n] for n in ("seed", "position", "depth", "choice"))
    first, own = _key(seed, position - depth, choice), _key(seed, position, choice)
    return {
        **case,
        "seed": str(seed),
        "uniform": float(draws.acceptance_uniforms(first, depth)),
        "accepted": bool(draws.accept(token, target, draft, first, depth)),
        "recovered": int(draws.recovered_draw(token, target, draft, own)),
    }


def text() -> str:
    """The file's text: one case a line."""
    parts = []
    for name, value in vectors().items():
        if isinstance(value, list):
            lines = ",\n".join(f"  {json.dumps(case)}" for case in value)
            parts.append(f'"{name}": [\n{lines}\n ]')
        else:
            parts.append(f'"{name}": {json.dumps(value)}')
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main() -> None:
    """Write the file."""
    FILE.write_text(text())


if __name__ == "__main__":
    main()
