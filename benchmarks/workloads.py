"""Fixed workloads: prompts of random token ids and exact output lengths, the same every time."""

from __future__ import annotations

import random
from typing import Any

Body = dict[str, Any]

FILTERED = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
ONE_LABEL = {"temperature": 0.0, "logprobs": 2, "min_tokens": 0}


def make_workload(name: str, vocab_size: int, seed: int = 0, size: int | None = None) -> list[Body]:
    """Bodies of `/v1/completions` requests; `size` overrides the number of requests.

    single: one stream of 128 in, 256 out. greedy, temp, topkp, sampled, logprobs: 256 requests
    of 64 in, 256 out. burst: 512 of 512 in, 128 out. mixed: 256 of 100-1024 in and out.
    poisson: 400 of 256 in, 128 out. score, score-lp: 2000 prompts of 200, 1 out, with logprobs of
    two ids and without; score-prefix: the same over a prefix of 1024 and 32 of their own.
    chat: 32 of 64 in, 64 out, for a machine without a GPU.
    """
    rng = random.Random(f"{name}/{seed}")

    def generate(num_in: int, num_out: int, **fields: Any) -> Body:
        low = min(1000, vocab_size // 8)
        prompt = [rng.randrange(low, vocab_size - low) for _ in range(num_in)]
        exact = {"max_tokens": num_out, "min_tokens": num_out, "ignore_eos": True}
        return {"prompt": prompt, **exact, **fields}

    def many(count: int, num_in: int, num_out: int, **fields: Any) -> list[Body]:
        return [generate(num_in, num_out, **fields) for _ in range(size or count)]

    match name:
        case "single":
            return many(1, 128, 256, temperature=0.0)
        case "chat":
            return many(32, 64, 64, temperature=0.0)
        case "greedy":
            return many(256, 64, 256, temperature=0.0)
        case "temp":
            return many(256, 64, 256, temperature=0.8)
        case "topkp":
            return many(256, 64, 256, **FILTERED)
        case "sampled":
            return [body | {"seed": i} for i, body in enumerate(many(256, 64, 256, **FILTERED))]
        case "logprobs":
            return many(256, 64, 256, temperature=0.8, logprobs=5)
        case "burst":
            return many(512, 512, 128, temperature=0.0)
        case "mixed":
            lengths = [(rng.randint(100, 1024), rng.randint(100, 1024)) for _ in range(size or 256)]
            return [generate(i, o, temperature=0.6) for i, o in lengths]
        case "poisson":
            return many(400, 256, 128, temperature=0.8)
        case "score" | "score-lp":
            labels = _labels(vocab_size) if name == "score" else {}
            return [body | ONE_LABEL | labels for body in many(2000, 200, 1)]
        case "score-prefix":
            shared = generate(1024, 1)["prompt"]
            bodies = [body | ONE_LABEL | _labels(vocab_size) for body in many(2000, 32, 1)]
            return [body | {"prompt": shared + body["prompt"]} for body in bodies]
    raise ValueError(f"no workload named {name}")


def _labels(vocab_size: int) -> Body:
    return {"logprob_token_ids": [5000 % vocab_size, 6000 % vocab_size]}
