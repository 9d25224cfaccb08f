"""Whether a large model's logprobs can be trusted, and what a long scored prompt takes, on a GPU.

    python -m benchmarks.bench_logprobs

Values: an 8B shape with random weights in bfloat16 generates; the same texts are then scored as
prompts, by other kernels and other batches, and by transformers in float32 with the same weights.
Memory: a prompt of 32k tokens is echoed with logprobs by a server's engine at its own limits.
Prints a line a measurement; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bench_speculation import free_memory
from benchmarks.peer import dummy_peer
from benchmarks.shapes import QWEN3, SHAPES, write_shape
from engine.arrays import Float32Array, Int32Array
from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.messages.request import PromptLogprobsParams, Request
from engine.startup.build import build_engine
from sampling.params import SamplingParams

COMMAND = "python -m benchmarks.bench_logprobs"
DEVICE = torch.device("cuda")
NUM_TEXTS, PROMPT_TOKENS, NEW_TOKENS = 16, 64, 64
LONG = 32_768
UTILIZATION = 0.5
BRANCH_ROUNDINGS = 6
"""Roundings in a row within an attention or an MLP: the norm, the first product, the activation or
rope, the values, the sum."""
UNKNOWN = 2.0
"""The factor by which the estimate may be off: it takes branches for random maps, which attention
and softmax are not."""
PEER_MARGIN = 1.25
"""Ours rounds less often than transformers in bfloat16; both means are of 1,024 values, which
makes their ratio uncertain by 4 %."""


def rounding(shape: str) -> float:
    """Standard deviation of a logit's error, in units of the logits' own.

    Rounding to bfloat16 is a relative error r of deviation 2^-9 / sqrt 3. With random weights each
    of 2 L branches adds as much to the residual stream, which after l of them has the square l.
    A branch, whose outputs are products of two of its inputs' images, doubles the square of a
    relative error; so the stream's error has the square
        x(l) = x(l - 1) (1 + 2 / (l - 1)) + r^2 (l + BRANCH_ROUNDINGS).
    """
    unit = 2.0**-9 / 3.0**0.5
    num_branches = 2 * SHAPES[shape]["num_hidden_layers"]
    square = unit**2 * (1 + BRANCH_ROUNDINGS)
    for branch in range(2, num_branches + 1):
        square *= 1 + 2 / (branch - 1)
        square += unit**2 * (branch + BRANCH_ROUNDINGS)
    return UNKNOWN * math.sqrt(square / num_branches)


def make_engine(folder: str, **limits: Any) -> Engine:
    """An engine with random weights and the memory a server would take."""
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=folder, load_format="dummy", **limits),
            cache=CacheConfig(memory_utilization=UTILIZATION, prefix_caching=False),
            scheduler=SchedulerConfig(max_rows=64, max_step_tokens=8192),
            wait_for_kernels=True,
        )
    )


def texts_of(num: int, length: int, seed: int) -> list[Int32Array]:
    """Random prompts."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(10, QWEN3["vocab_size"] - 10, (num, length))
    return list(ids.astype(np.int32))


def generate(engine: Engine, prompts: list[Int32Array]) -> tuple[list[Int32Array], Float32Array]:
    """Prompts with what was drawn after them, and its logprobs [texts, NEW_TOKENS]."""
    for handle, prompt in enumerate(prompts):
        params = SamplingParams(seed=handle, logprobs=0)
        engine.submit(b"", _request(handle, prompt, params, NEW_TOKENS))
    tokens: list[list[int]] = [[] for _ in prompts]
    values: list[list[float]] = [[] for _ in prompts]
    while engine.has_work:
        for _, output in engine.step():
            handles = np.repeat(output.handles, output.num_new)
            assert output.logprobs is not None
            chosen = output.logprobs.chosen
            drawn = zip(handles.tolist(), output.token_ids, chosen, strict=True)
            for handle, token, value in drawn:
                tokens[handle].append(int(token))
                values[handle].append(float(value))
    texts = [np.concatenate((p, t)).astype(np.int32) for p, t in zip(prompts, tokens, strict=True)]
    return texts, np.array(values, dtype=np.float32)


def score(engine: Engine, texts: list[Int32Array], start: int, num_top: int = 0) -> Float32Array:
    """Logprobs of each text's tokens from `start` on, float32 [texts, tokens]."""
    scores = PromptLogprobsParams(start=start, num_top=num_top)
    for handle, text in enumerate(texts):
        engine.submit(b"", _request(handle, text, SamplingParams(), 1, scores))
    found: dict[int, Float32Array] = {}
    while engine.has_work:
        for _, output in engine.step():
            if output.errors:
                raise RuntimeError(str(output.errors))
            found |= {each.handle: each.logprobs.chosen for each in output.prompt_logprobs}
    return np.stack([found[handle] for handle in range(len(texts))])


def _request(
    handle: int,
    prompt: Int32Array,
    params: SamplingParams,
    max_tokens: int,
    scores: PromptLogprobsParams | None = None,
) -> Request:
    return Request(
        handle=handle,
        prompt_token_ids=prompt,
        params=params,
        max_tokens=max_tokens,
        prompt_logprobs=scores,
    )


@torch.inference_mode()
def peer_logprobs(peer: Any, texts: list[Int32Array]) -> tuple[Float32Array, float]:
    """transformers' [texts, NEW_TOKENS] by a float32 softmax, and the logits' deviation."""
    values, spreads = [], []
    for text in texts:
        ids = torch.from_numpy(text).long().to(DEVICE)
        logits = peer(ids[None]).logits[0, PROMPT_TOKENS - 1 : -1].float()
        logprobs = logits.log_softmax(-1)
        values.append(logprobs.gather(1, ids[PROMPT_TOKENS:, None])[:, 0].cpu().numpy())
        spreads.append(float(logits.std()))
    return np.stack(values), float(np.mean(spreads))


def values_figures(shape: str) -> Iterator[dict[str, Any]]:
    """Compare generated values with rescored ones, and both with transformers' in float32."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(write_shape(shape, Path(temporary)))
        engine = make_engine(folder, max_model_len=1024)
        texts, generated = generate(engine, texts_of(NUM_TEXTS, PROMPT_TOKENS, 1))
        rescored = score(engine, texts, PROMPT_TOKENS)
        del engine
        free_memory()
        peer = dummy_peer(folder, DEVICE)
    rounded, _ = peer_logprobs(peer, texts)
    exact, spread = peer_logprobs(peer.float(), texts)
    error = rounding(shape) * spread
    print(f"logits' deviation {spread:.3f}, largest error expected {error:.4f}", flush=True)
    pairs = {
        "generated - rescored": (generated - rescored, 2.0**0.5),
        "ours - float32 transformers": (rescored - exact, 1.0),
    }
    check = f"{exact.size} sampled tokens"
    for name, (gap, times) in pairs.items():
        deviation = times * error
        # The mean of a normal error is 0.8 of its deviation; one of 1,024 passes 5 at odds of 6e-4.
        for kind, value, must in (
            ("mean", np.abs(gap).mean(), 0.8 * deviation),
            ("largest", np.abs(gap).max(), 5.0 * deviation),
        ):
            what = f"{shape}, bf16 logprobs, {kind} |{name}|"
            yield _figure(what, float(value), "nats", must, check)
    ours, theirs = (float(np.abs(values - exact).mean()) for values in (rescored, rounded))
    what = f"{shape}, bf16 logprobs, mean |ours - float32| over that of transformers in bf16"
    yield _figure(what, ours / theirs, "ratio", PEER_MARGIN, check)


def memory_figure(shape: str) -> dict[str, Any]:
    """Measure the memory's peak while a long prompt is echoed, as a share of the limit."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(write_shape(shape, Path(temporary)))
        engine = make_engine(folder, max_model_len=LONG + 16)
        before = _memory()
        (values,) = score(engine, texts_of(1, LONG, 2), 1, num_top=20)
        after, total = _memory(), torch.cuda.mem_get_info()[1]
        del engine
    name = f"{shape}, prompt of {LONG} tokens echoed with 20 logprobs: memory over the limit's"
    check = f"{np.isfinite(values).sum()} finite values; before {before}, after {after}"
    return _figure(name, after["used"] / (UTILIZATION * total), "share", 1.0, check)


def _memory() -> dict[str, int]:
    """Bytes the device has in use, bytes torch took of it, and the peak of what torch gave out."""
    free, total = torch.cuda.mem_get_info()
    found = {
        "used": total - free,
        "reserved": torch.cuda.memory_reserved(),
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
    }
    torch.cuda.reset_peak_memory_stats()
    return found


def _figure(name: str, value: float, unit: str, must: float, check: str) -> dict[str, Any]:
    print(f"{name}: {value:.4f}, must {must:.4f}; {check}", flush=True)
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "sense": "<=",
        "must": round(must, 4),
        "bound": None,
        "command": COMMAND,
        "check": check,
    }


def figures() -> Iterator[dict[str, Any]]:
    """All figures, in one run."""
    yield memory_figure("qwen3-0.6b")
    free_memory()
    yield from values_figures("qwen3-8b")


def main() -> None:
    """Measure and print."""
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "figures": list(figures())}))


if __name__ == "__main__":
    main()
