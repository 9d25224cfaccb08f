"""Decisions, embeddings and a teacher's scores beside plain requests of the same server.

    python -m benchmarks.bench_decisions                          # the demo model on the CPU
    python -m benchmarks.bench_decisions --shape qwen3-0.6b       # random weights on the GPU
    python -m benchmarks.bench_decisions --parts latency,embeddings

Parts: `decisions`, `reads` (the same questions as completions of one token), `latency` (one
question over a cached state), `large` (400 questions of 255 options), `embeddings`, `teacher`.
Every pass has fresh texts; the best counts. Prints a line a part; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.bench_serving import serving
from benchmarks.figures import Figure, figure
from benchmarks.shapes import BIG, SHAPES, TINY, write_shape
from demo import MODEL_FOLDER
from server.bench.workloads import Body

DEMO = "demo"
PARTS = ("decisions", "reads", "latency", "embeddings", "teacher", "large")
CHOICES = {
    "billing": "payments and refunds",
    "support": "something does not work",
    "sales": "wants to buy",
    "other": "none of these",
}
TEACHER_IDS = 256
ONE_TOKEN: Body = {"max_tokens": 1, "temperature": 0}
CHECK = (
    "all requests were answered; probabilities are compared with transformers' by "
    "tests/server/scoring and tests/serving/test_decisions.py"
)

Posts = list[tuple[str, Body]]


@dataclass(frozen=True)
class Sizes:
    """The amount of work: a GPU's, or what two CPU cores do in seconds."""

    state: int  # characters, about as many tokens with the tokenizer of random shapes
    questions: int
    requests: int
    large: tuple[int, int, int]  # questions, options, characters of the state
    texts: int  # of 200 tokens, to embed
    prompts: int  # that a teacher scores
    prompt_len: int
    top_id: int  # ids are drawn below


FULL = Sizes(2048, 50, 8, (400, 255, 8000), 2000, 64, 1024, 150_000)
SHORT = Sizes(500, 5, 2, (4, 255, 500), 20, 2, 128, 8000)


class Client:
    """Posts bodies to a server at once, and draws what is in them."""

    def __init__(self, url: str, model: str, sizes: Sizes, session: aiohttp.ClientSession) -> None:
        self._url, self._model, self.sizes, self._session = url, model, sizes, session
        self._random = random.Random(1)

    def text(self, length: int) -> str:
        """Letters and spaces."""
        return "".join(self._random.choices(string.ascii_lowercase + "  ", k=length))

    def ids(self, length: int) -> list[int]:
        """Random token ids."""
        return [self._random.randrange(1000, self.sizes.top_id) for _ in range(length)]

    def question(self) -> Body:
        """A question of four choices."""
        choices = [{"value": name, "description": text} for name, text in CHOICES.items()]
        return {"type": "choice", "instructions": self.text(40), "choices": choices}

    async def post(self, path: str, body: Body) -> bytes:
        """The reply to one body; raises RuntimeError where it is an error."""
        async with self._session.post(
            self._url + path, json={"model": self._model} | body
        ) as reply:
            content = await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path} {reply.status}: {content[:300]!r}")
        return content

    async def best_of(self, make: Callable[[], Posts], repeat: int) -> tuple[float, list[bytes]]:
        """Seconds of the fastest of some passes of posts at once, and the last one's replies."""
        times, replies = [], list[bytes]()
        for _ in range(repeat):
            posts = make()
            began = time.perf_counter()
            replies = list(await asyncio.gather(*(self.post(*post) for post in posts)))
            times.append(time.perf_counter() - began)
        return min(times), replies

    def completions(self, count: int, length: int, **fields: Any) -> Posts:
        """Prompts of random ids that are continued by one token each."""
        plain = ONE_TOKEN | fields
        return [("/v1/completions", {"prompt": self.ids(length), **plain}) for _ in range(count)]


async def decisions(client: Client) -> dict[str, float]:
    """Requests of many questions beside prefilling as many tokens as they have."""
    sizes = client.sizes

    def posts() -> Posts:
        def body() -> Body:
            questions = [client.question() for _ in range(sizes.questions)]
            return {"input": client.text(sizes.state), "questions": questions}

        return [("/v1/decisions", body()) for _ in range(sizes.requests)]

    seconds, replies = await client.best_of(posts, 4)
    usages = [json.loads(reply)["usage"] for reply in replies]
    computed = sum(
        each["input_tokens"] - each["input_tokens_details"]["cached_tokens"] for each in usages
    )
    count = max(computed // sizes.state, 1)
    prefill_s, _ = await client.best_of(lambda: client.completions(count, sizes.state), 4)
    return {
        "decisions_per_s": round(sizes.requests * sizes.questions / seconds, 1),
        "computed_tokens": computed,
        "over_prefill": round(seconds / prefill_s * count * sizes.state / computed, 3),
    }


async def reads(client: Client) -> dict[str, float]:
    """The same questions as a server without decisions answers them: one completion each."""
    sizes = client.sizes
    options = "".join(
        f"\n{letter}: {name} - {text}"
        for letter, (name, text) in zip(string.ascii_uppercase, CHOICES.items(), strict=False)
    )
    asked = ONE_TOKEN | {"logprobs": 1, "logprob_token_ids": [5, 6, 7, 8]}

    def posts() -> Posts:
        states = [client.text(sizes.state) for _ in range(sizes.requests)]
        ending = "\nAnswer with the letter of one option only.\nassistant:"
        return [
            (
                "/v1/completions",
                {"prompt": f"{state}\nQuestion: {client.text(40)}{options}{ending}", **asked},
            )
            for state in states
            for _ in range(sizes.questions)
        ]

    seconds, _ = await client.best_of(posts, 3)
    return {"reads_per_s": round(sizes.requests * sizes.questions / seconds, 1)}


async def latency(client: Client) -> dict[str, float]:
    """Median seconds of one question over a state that is cached."""
    state, times = client.text(500), []
    for _ in range(40):
        posts: Posts = [("/v1/decisions", {"input": state, "questions": [client.question()]})]
        times.append((await client.best_of(partial(list, posts), 1))[0])
    return {"latency_ms": round(1e3 * statistics.median(times[5:]), 2)}


async def large(client: Client) -> dict[str, float]:
    """One request of many questions of many options."""
    num_questions, num_options, length = client.sizes.large
    options = [{"value": f"option {index}"} for index in range(num_options)]
    question = {"type": "choice", "choices": options}
    questions = [question | {"instructions": client.text(40)} for _ in range(num_questions)]
    body = {"input": client.text(length), "questions": questions}
    seconds, (reply,) = await client.best_of(lambda: [("/v1/decisions", body)], 1)
    sums = [
        sum(option["probability"] for option in answer["probabilities"])
        for answer in json.loads(reply)["answers"]
    ]
    return {"large_s": round(seconds, 2), "worst_sum": max(abs(1 - each) for each in sums)}


async def embeddings(client: Client) -> dict[str, float]:
    """Embeddings of texts of 200 tokens beside completions of one token of as many."""
    count = client.sizes.texts

    def embedded() -> Posts:
        texts = [client.ids(200) for _ in range(count)]
        return [("/v1/embeddings", {"input": texts, "encoding_format": "base64"})]

    def continued() -> Posts:
        prompts = [client.ids(200) for _ in range(count)]
        return [
            ("/v1/completions", {"prompt": prompts[start : start + 500], **ONE_TOKEN})
            for start in range(0, count, 500)
        ]

    seconds, _ = await client.best_of(embedded, 3)
    prefill_s, _ = await client.best_of(continued, 3)
    return {"embeddings_s": round(seconds, 3), "share_of_prefill": round(prefill_s / seconds, 3)}


async def teacher(client: Client) -> dict[str, float]:
    """Logprobs of 256 ids at every position, packed, beside the same prompts without."""
    sizes = client.sizes
    prompts = partial(client.completions, sizes.prompts, sizes.prompt_len)
    plain_s, _ = await client.best_of(prompts, 3)

    def taught() -> Posts:
        ids = client.ids(TEACHER_IDS)
        return prompts(prompt_logprob_token_ids=ids, logprobs_format="packed")

    seconds, _ = await client.best_of(taught, 3)
    return {"teacher_s": round(seconds, 3), "teacher_share": round(plain_s / seconds, 3)}


MEASURES = {
    "decisions": decisions,
    "reads": reads,
    "latency": latency,
    "embeddings": embeddings,
    "teacher": teacher,
    "large": large,
}


async def measure(url: str, model: str, parts: list[str], sizes: Sizes) -> dict[str, float]:
    """Measure parts, printing each."""
    found: dict[str, float] = {}
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = Client(url, model, sizes, session)
        for part in parts:
            found |= await MEASURES[part](client)
            print(json.dumps(found), flush=True)
    return found


def measurements(shape: str, parts: list[str]) -> dict[str, float]:
    """All measurements of one shape, by name, of a server that is started for them."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--served-model-name", "measured", "--disable-uvicorn-access-log"]
        if shape == DEMO:
            model, sizes = str(MODEL_FOLDER), SHORT
        elif shape == TINY:
            model, sizes = str(write_shape(shape, Path(folder))), SHORT
            flags += ["--load-format", "dummy"]
        else:
            model, sizes = str(write_shape(shape, Path(folder))), FULL
            flags += ["--load-format", "dummy", "--max-model-len", "20000"]
        with serving(model, *flags) as url:
            return asyncio.run(measure(url, "measured", parts, sizes))


def figures(shape: str) -> Iterator[Figure]:
    """The figures of one shape; for the large one of single requests alone."""
    parts = ["latency", "large"] if shape == BIG else list(PARTS[:-1])
    found = measurements(shape, parts)
    command = f"python -m benchmarks.bench_decisions --shape {shape} --parts {','.join(parts)}"
    most, aim = (12.0, 9.0) if shape == BIG else (6.0, 4.0)
    latency_ms = found["latency_ms"]
    made = [figure("one question, cached state", latency_ms, "ms", "<=", most, None, aim)]
    if shape == BIG:
        seconds = found["large_s"]
        made.append(figure("400 questions of 255 options", seconds, "s", "<=", None, None))
    else:
        rate = found["decisions_per_s"]
        share, over = found["share_of_prefill"], found["over_prefill"]
        taught = found["teacher_share"]
        times = round(rate / found["reads_per_s"], 2)
        made += [
            figure("8 x 50 questions: time over prefill", over, "ratio", "<=", 1.35, 1.0, 1.15),
            figure("8 x 50 questions", rate, "decisions/s", ">=", None, None),
            figure(
                "8 x 50 questions: rate over completions'", times, "ratio", ">=", 3.0, None, 6.0
            ),
            figure("embeddings: share of prefill", share, "share", ">=", 0.85, 1.0, 0.95),
            figure("teacher: share of prefill", taught, "share", ">=", 0.5, 1.0, 0.8),
        ]
    for each in made:
        yield each | {"name": f"{shape}, {each['name']}", "command": command, "check": CHECK}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", choices=[DEMO, TINY, *SHAPES], default=DEMO)
    parser.add_argument("--parts", default=",".join(PARTS))
    args = parser.parse_args()
    print(json.dumps(measurements(args.shape, args.parts.split(","))))


if __name__ == "__main__":
    main()
