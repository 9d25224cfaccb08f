"""The noise contract in plain Python, written from `docs/noise.md` alone.

It imports nothing of the project, so that it shows what the page suffices for.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

PURPOSES = {"target": 0, "draft": 1, "accept": 2, "residual": 3}
LEVELS = {"tile": 0, "token": 1}
TILE = 1024
Case = dict[str, Any]


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Four words of a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            product1 >> 32 ^ c1 ^ k0,
            product1 & 0xFFFFFFFF,
            product0 >> 32 ^ c3 ^ k1,
            product0 & 0xFFFFFFFF,
        )
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def stream(purpose: str, level: str, depth: int = 0) -> int:
    """The counter's last word."""
    return LEVELS[level] + 2 * PURPOSES[purpose] + 256 * depth


def uniform(seed: int, index: int, position: int, choice: int, stream_id: int) -> float:
    """A uniform in (0, 1)."""
    key = seed % 2**64
    words = philox([index >> 1, position, choice, stream_id], [key % 2**32, key >> 32])
    high, low = words[2:] if index % 2 else words[:2]
    return min((2 * (2**32 * high + low) + 1) / 2**65, 1 - 2**-53)


def exponential(seed: int, index: int, position: int, choice: int, stream_id: int) -> float:
    """An exponential with mean 1."""
    return -math.log1p(-uniform(seed, index, position, choice, stream_id))


def race(weights: list[float], purpose: str, seed: int, position: int, choice: int) -> int:
    """The token that wins the race of tiles and then of tokens."""
    masses = [math.fsum(weights[first : first + TILE]) for first in range(0, len(weights), TILE)]

    def best(indices: range, rates: list[float], level: str) -> int:
        keys = [
            (exponential(seed, i, position, choice, stream(purpose, level)) / rate, i)
            for i, rate in zip(indices, rates, strict=True)
            if rate > 0
        ]
        return min(keys)[1]

    tile = best(range(len(masses)), masses, "tile")
    ids = range(tile * TILE, min((tile + 1) * TILE, len(weights)))
    return best(ids, weights[ids.start : ids.stop], "token")


def logits_of(size: int, multiplier: int) -> list[float]:
    """The logits of a case of the vectors."""
    return [(i * multiplier + 12345) % 2**16 / 2**12 - 8 for i in range(size)]


def draw(case: Case) -> int:
    """The token of a case of `draws`."""
    prompt, output = case["prompt"], case["output"]
    x = edited(logits_of(case["size"], case["multiplier"]), case)
    temperature = case.get("temperature", 1.0)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if temperature == 0:
        return order[0]
    top = x[order[0]]
    weights = [math.exp((v - top) / temperature) if v > -math.inf else 0.0 for v in x]
    left = [i for i in order if weights[i] >= case.get("min_p", 0.0) and weights[i] > 0]
    left = left[: case.get("top_k") or len(left)]
    if (top_p := case.get("top_p", 1.0)) < 1:
        rest, mass, num = math.fsum(weights[i] for i in left), 0.0, 0
        while mass < top_p * rest:
            mass += weights[left[num]]
            num += 1
        left = left[:num]
    kept = set(left)
    weights = [w if i in kept else 0.0 for i, w in enumerate(weights)]
    position = len(prompt) + len(output)
    return race(weights, "target", int(case["seed"]), position, case["choice"])


def edited(x: list[float], case: Case) -> list[float]:
    """Logits after bias, masks and penalties."""
    prompt, output = case["prompt"], case["output"]
    for token, bias in case.get("logit_bias", {}).items():
        x[int(token)] += bias
    banned = set(case["stop_token_ids"]) if len(output) < case.get("min_tokens", 0) else set()
    history = prompt + output
    for *begin, last in case.get("bad_words", []):
        if history[len(history) - len(begin) :] == begin:
            banned.add(last)
    if "allowed_token_ids" in case:
        banned |= set(range(len(x))) - set(case["allowed_token_ids"])
    x = [-math.inf if i in banned else v for i, v in enumerate(x)]
    repetition = case.get("repetition_penalty", 1.0)
    counts: Counter[int] = Counter(output)
    for token in {*prompt, *output}:
        x[token] = x[token] / repetition if x[token] > 0 else x[token] * repetition
        count = counts[token]
        x[token] -= case.get("frequency_penalty", 0.0) * count
        x[token] -= case.get("presence_penalty", 0.0) * (count > 0)
    return x


def verification(case: Case) -> tuple[float, bool, int]:
    """The uniform, whether the draft is accepted, and the token in its place."""
    seed, choice, position = int(case["seed"]), case["choice"], case["position"]
    p, x = softmax(logits_of(case["size"], case["multiplier"])), case["draft"]
    q = softmax(logits_of(case["size"], case["draft_multiplier"]))
    rest = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    depth = case["depth"]
    u = uniform(seed, 0, position - depth, choice, stream("accept", "tile", depth))
    weights = rest if any(rest) else p
    return u, u < p[x] / q[x], race(weights, "residual", seed, position, choice)


def softmax(x: list[float]) -> list[float]:
    """The probabilities of logits."""
    top = max(x)
    weights = [math.exp(v - top) for v in x]
    total = math.fsum(weights)
    return [w / total for w in weights]
