"""Fixed workloads: prompts of random token ids and exact output lengths, the same every time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]

FILTERED = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}
ONE_LABEL = {"max_tokens": 1, "min_tokens": 0, "temperature": 0.0, "logprobs": 2}
NUM_ITEMS = 2000
"""Items of a `gscore` request."""

_GENERATED: dict[str, tuple[int, int, int, Body]] = {
    "single": (1, 128, 256, {"temperature": 0.0}),
    "stream": (256, 64, 256, {"temperature": 0.8}),
    "stream-lp": (256, 64, 256, {"temperature": 0.8, "logprobs": 5}),
    "poisson": (400, 256, 128, {"temperature": 0.8}),
    "chat": (32, 64, 64, {"temperature": 0.0}),
    "greedy": (256, 64, 256, {"temperature": 0.0}),
    "temp": (256, 64, 256, {"temperature": 0.8}),
    "topkp": (256, 64, 256, FILTERED),
    "sampled": (256, 64, 256, FILTERED),
    "logprobs": (256, 64, 256, {"temperature": 0.8, "logprobs": 5}),
    "burst": (512, 512, 128, {"temperature": 0.0}),
    "long": (32, 7900, 256, {"temperature": 0.8}),
}
"""Requests, tokens in and out of each, and what else their bodies say."""
BESIDE = (256, 64, 1024), (80, 512, 1)
"""Streams of `stream-beside` and what arrives beside them: requests, tokens in and out of each."""
NUM_QUESTIONS = 50
"""Questions of a `decisions` request, of four choices each."""
_TEAMS = {
    "billing": "payments and refunds",
    "support": "something does not work",
    "sales": "wants to buy",
    "other": "none of these",
}
NAMES = (
    *(*_GENERATED, "stream-beside", "mixed"),
    *("score", "score-lp", "score-prefix", "gscore", "decisions"),
)
STREAMED = ("single", "stream", "stream-lp", "stream-beside", "poisson")
"""Every token is read as it comes; the others' replies come in one piece."""

_COMMON = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word "
    "business issue side kind head house service friend father power hour game line end member law "
    "car city name team minute idea body back parent face others level office door health person "
    "art war history party result change morning reason research girl guy moment air teacher force"
)
WORDS = _COMMON.split()
"""Common words, each one token of most vocabularies where a blank precedes it."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Requests of one kind, and how they are sent.

    Attributes:
        path: where they are posted to.
        is_streamed: replies are streams of events.
        arrives: requests come at a rate, whether or not those before have been answered.
        num_first: requests that are sent before those that come at a rate.
        num_counted: what a request counts as in requests a second: the items of a scoring request.
    """

    name: str
    bodies: list[Body]
    path: str = "/v1/completions"
    is_streamed: bool = False
    arrives: bool = False
    num_first: int = 1
    num_counted: int = 1


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """What is asked for in place of a workload's own numbers, where it is not None.

    Attributes:
        size: requests. input: tokens of a prompt, without a prefix that all share. output: tokens
            of a reply.
    """

    size: int | None = None
    input: int | None = None
    output: int | None = None


def workload(name: str, vocab_size: int, seed: int, lengths: Lengths) -> Workload:
    """A workload by its name, see `make_workload`."""
    bodies = make_workload(name, vocab_size, seed, lengths)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    if name in STREAMED:
        arrives = name in ("poisson", "stream-beside")
        first = (lengths.size or BESIDE[0][0]) if name == "stream-beside" else 1
        bodies = [body | streamed for body in bodies]
        return Workload(
            name=name, bodies=bodies, is_streamed=True, arrives=arrives, num_first=first
        )
    if name == "gscore":
        path, items = "/generative_scoring", len(bodies[0]["items"])
        return Workload(name=name, bodies=bodies, path=path, num_counted=items)
    if name == "decisions":
        return Workload(name=name, bodies=bodies, path="/v1/decisions", num_counted=NUM_QUESTIONS)
    return Workload(name=name, bodies=bodies)


def make_workload(
    name: str, vocab_size: int, seed: int = 0, lengths: Lengths | None = None
) -> list[Body]:
    """Bodies of a workload's requests.

    stream-beside: streams, then prompts that arrive beside them, whose lengths are fixed. sampled:
    with a seed each. mixed: 256 of 100-1024 in and out. poisson: arrives at a rate. score,
    score-lp: 2000 prompts of 200, 1 out, with logprobs of two ids and without; score-prefix: the
    same over a prefix of 1024 and 32 of their own; gscore: as many items in one request. decisions:
    8 states of 400 words with 50 questions each. chat is for a machine without a GPU.

    Args:
        vocab_size: ids are drawn below it, and above the first thousand.
    """
    made = _Bodies(random.Random(f"{name}/{seed}"), vocab_size, lengths or Lengths())
    if name == "mixed":
        return made.mixed(256, 100, 1024, temperature=0.6)
    if name not in NAMES:
        raise ValueError(f"no workload named {name}")
    if name == "stream-beside":
        (count, num_in, num_out), beside = BESIDE
        streams = made.many(count, num_in, num_out, temperature=0.8)
        return streams + _Bodies(random.Random(f"beside/{seed}"), vocab_size, Lengths()).many(
            *beside, temperature=0.8
        )
    if name == "decisions":
        return made.decisions(8, 400)
    if name not in _GENERATED:
        return made.scored(name)
    count, num_in, num_out, fields = _GENERATED[name]
    bodies = made.many(count, num_in, num_out, **fields)
    if name == "sampled":
        return [body | {"seed": i} for i, body in enumerate(bodies)]
    return bodies


def in_words(body: Body) -> Body:
    """The body with a word in place of each token id of its prompt, query and items."""
    sent = dict(body)
    for name in ("prompt", "query"):
        if name in body:
            sent[name] = _words(body[name])
    if "items" in body:
        sent["items"] = [_words(item) for item in body["items"]]
    return sent


def _words(ids: list[int]) -> str:
    return " ".join(WORDS[token_id % len(WORDS)] for token_id in ids)


class _Bodies:
    """Makes bodies of random prompts."""

    def __init__(self, rng: random.Random, vocab_size: int, lengths: Lengths) -> None:
        self._rng = rng
        self._lengths = lengths
        low = min(1000, vocab_size // 8)
        self._ids = range(low, vocab_size - low)
        self._labels = [5000 % vocab_size, 6000 % vocab_size]

    def prompt(self, num_in: int) -> list[int]:
        return self._rng.choices(self._ids, k=num_in)

    def generate(self, num_in: int, num_out: int, **fields: Any) -> Body:
        num_out = self._lengths.output or num_out
        exact = {"max_tokens": num_out, "min_tokens": num_out, "ignore_eos": True}
        return {"prompt": self.prompt(self._lengths.input or num_in), **exact, **fields}

    def many(self, count: int, num_in: int, num_out: int, **fields: Any) -> list[Body]:
        return [
            self.generate(num_in, num_out, **fields) for _ in range(self._lengths.size or count)
        ]

    def mixed(self, count: int, least: int, most: int, **fields: Any) -> list[Body]:
        """Both lengths anew for each request."""
        draw = self._rng.randint
        lengths = [
            (draw(least, most), draw(least, most)) for _ in range(self._lengths.size or count)
        ]
        return [self.generate(i, o, **fields) for i, o in lengths]

    def decisions(self, count: int, num_words: int) -> list[Body]:
        """States of words, which these requests cannot have as ids, with questions of choices."""
        choices = [{"value": name, "description": words} for name, words in _TEAMS.items()]

        def question() -> Body:
            return {"type": "choice", "instructions": _words(self.prompt(8)), "choices": choices}

        return [
            {
                "input": _words(self.prompt(self._lengths.input or num_words)),
                "questions": [question() for _ in range(NUM_QUESTIONS)],
            }
            for _ in range(self._lengths.size or count)
        ]

    def scored(self, name: str) -> list[Body]:
        """Prompts whose next token is asked for, or one query with items."""
        ids = {} if name == "score-lp" else {"logprob_token_ids": self._labels}
        shared = self.prompt(1024) if name in ("score-prefix", "gscore") else []
        if name == "gscore":
            size, num_in = self._lengths.size or NUM_ITEMS, self._lengths.input or 32
            items = [self.prompt(num_in) for _ in range(size)]
            asked = {"label_token_ids": self._labels, "add_special_tokens": False}
            return [{"query": shared, "items": items, **asked}]
        bodies = [body | ONE_LABEL | ids for body in self.many(2000, 32 if shared else 200, 1)]
        return [body | {"prompt": shared + body["prompt"]} for body in bodies]
