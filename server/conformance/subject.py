"""The server that is examined, and its replies read alike whatever their dialect."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, NamedTuple

from server.conformance.result import NotDoneError
from server.remote import Remote, RemoteReply

Json = dict[str, Any]
AT_ONCE = 8
"""Requests under way at the same time."""
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPTS = (
    *("The quick brown fox", "Once upon a time there was a", "def main(", "Dear", "import "),
    *("The answer is", "for i in ", "A list of", '"""', "\n\ndef ", "x = "),
)
"""The one whose next token is the most open is used, if enough of its mass is reported."""
ENOUGH_MASS = 0.5
NEUTRAL = {"temperature": 1, "top_p": 1}
EXTENSIONS: Json = {"top_k": 0, "min_p": 0, "repetition_penalty": 1}
"""What makes draws neutral on servers whose defaults are not; sent where it is taken."""


class TokenLogprob(NamedTuple):
    """A drawn token as its server reports it.

    Attributes:
        name: its text, or its id where the server gives one.
        logprob: its own.
        top: logprobs of the most likely tokens by name, the token itself where it is listed.
    """

    name: str
    logprob: float
    top: dict[str, float]


class Subject:
    """A server under examination.

    Args:
        remote: where it is.
        model: its name there.
    """

    def __init__(self, remote: Remote, model: str) -> None:
        self.remote, self.model = remote, model

    def send(self, path: str, body: Json) -> RemoteReply:
        """The reply to a body of the model."""
        return self.remote.post(path, {"model": self.model, **body})

    def ask(self, path: str, body: Json) -> Json:
        """A reply of 200; raises `NotDoneError` for another."""
        return parsed(self.send(path, body), path)

    def complete(self, **fields: Any) -> Json:
        """The reply to a completion, greedy and of few tokens by default."""
        return self.ask(COMPLETIONS, {**self.greedy, "prompt": self.prompt, **fields})

    def chat(self, **fields: Any) -> Json:
        """The reply to a chat, likewise."""
        messages = [{"role": "user", "content": "Count to three."}]
        return self.ask(CHAT, {**self.greedy, "messages": messages, **fields})

    def choice(self, **fields: Any) -> Json:
        """The only choice of a completion."""
        choices: list[Json] = self.complete(**fields)["choices"]
        return choices[0]

    def events(self, path: str, body: Json) -> list[Json]:
        """The chunks of a stream; raises `NotDoneError` where it is none."""
        reply = self.send(path, {**body, "stream": True})
        if reply.status != 200:
            parsed(reply, path)
        if reply.content_type != "text/event-stream":
            raise NotDoneError("fail", f"a stream's type is {reply.content_type!r}")
        lines = [line[5:].strip() for line in reply.body.splitlines() if line.startswith(b"data:")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    def all_choices(self, bodies: Sequence[Json]) -> list[Json]:
        """The choices of several completions, some at the same time; in order."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            replies = list(pool.map(lambda body: self.complete(**body), bodies))
        return [choice for reply in replies for choice in reply["choices"]]

    @property
    def greedy(self) -> Json:
        """Fields of a greedy request of eight tokens."""
        return {"temperature": 0, "max_tokens": 8}

    @cached_property
    def extensions(self) -> Json:
        """The neutral values of fields beyond OpenAI's that the server takes."""
        taken: Json = {}
        for name, value in EXTENSIONS.items():
            body = {"prompt": "a", "max_tokens": 1, name: value}
            if self.send(COMPLETIONS, body).status == 200:
                taken[name] = value
        return taken

    @cached_property
    def neutral(self) -> Json:
        """Fields with which tokens are drawn from the model's own distribution."""
        return {**NEUTRAL, **self.extensions}

    @cached_property
    def num_top(self) -> int:
        """The most of 20, 5 and 1 top logprobs that it reports; raises `NotDoneError` for none."""
        for num_top in (20, 5, 1):
            body = {"prompt": PROMPTS[0], "max_tokens": 1, "temperature": 0, "logprobs": num_top}
            reply = self.send(COMPLETIONS, body)
            if reply.status == 200 and tokens_of(parsed(reply, COMPLETIONS)["choices"][0]):
                return num_top
        raise NotDoneError("not judged", "it reports no logprobs of completions")

    @cached_property
    def prompt(self) -> str:
        """The prompt of `PROMPTS` that is used."""
        try:
            num_top = self.num_top
        except NotDoneError:
            return PROMPTS[0]
        found = {}
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": num_top}
            if tokens := tokens_of(self.ask(COMPLETIONS, body)["choices"][0]):
                values = list(tokens[0].top.values())
                mass = sum(map(math.exp, values))
                entropy = -sum(value * math.exp(value) for value in values)
                found[mass > ENOUGH_MASS, entropy] = prompt
        return found[max(found)] if found else PROMPTS[0]


def parsed(reply: RemoteReply, path: str) -> Json:
    """A reply of 200 as JSON; raises `NotDoneError` for an error or what is no JSON."""
    content = reply.json()
    if reply.status >= 500:
        raise NotDoneError("fail", f"{path} answers {reply.status}")
    if reply.status != 200:
        error = content.get("error") if isinstance(content, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        raise NotDoneError("refused", f"{reply.status}: {str(message or 'no message')[:100]}")
    if not isinstance(content, dict) or not isinstance(content.get("choices"), list):
        raise NotDoneError("fail", f"{path} answers 200 without choices")
    return content


def tokens_of(choice: Json) -> list[TokenLogprob]:
    """The tokens of a choice with their logprobs, in OpenAI's form of completions or of chats."""
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return []
    if isinstance(content := logprobs.get("content"), list):
        return [
            TokenLogprob(
                _name(entry),
                entry["logprob"],
                {_name(top): top["logprob"] for top in entry.get("top_logprobs") or ()},
            )
            for entry in content
        ]
    tops = logprobs.get("top_logprobs") or [{}] * len(logprobs.get("tokens") or ())
    columns = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or [], tops
    return [
        TokenLogprob(name, value, top or {})
        for name, value, top in zip(*columns, strict=False)
        if value is not None
    ]


def _name(entry: Json) -> str:
    return str(entry["id"]) if "id" in entry else str(entry["token"])
