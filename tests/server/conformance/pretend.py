"""A server in this process over a toy model of letters: all right, or wrong once.

Its next letter's distribution follows from the last letter. Each fault is one that servers have.
"""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import orjson

from server.remote import RemoteReply

Json = dict[str, Any]
LETTERS = "abcdefgh"
CONTEXT = 100_000
OBJECT = '{"color":"red","count":3,"exact":true}'


class RefusalError(Exception):
    """A 400, or another status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class PretendServer:
    """As `server.remote.Remote`, without a network.

    Args:
        fault: what it does wrong; None for nothing.
    """

    url = "http://pretend"

    def __init__(self, fault: str | None = None) -> None:
        self.fault = fault
        self._random = random.Random(17)
        self._lock = threading.Lock()

    def get(self, path: str) -> RemoteReply:
        names = ["other"] if self.fault == "models" else ["toy"]
        return json_reply(200, {"data": [{"id": name} for name in names]})

    def post(self, path: str, body: Any) -> RemoteReply:
        with self._lock:
            try:
                return self._post(path, body)
            except RefusalError as error:
                reported = {"message": str(error), "type": "invalid", "param": None, "code": None}
                if self.fault == "error object":
                    del reported["param"]
                return json_reply(error.status, {"error": reported})

    def _post(self, path: str, body: Any) -> RemoteReply:
        if isinstance(body, bytes):
            return json_reply(200 if self.fault == "bodies" else 400, {})
        if body["model"] != "toy" and self.fault != "unknown model":
            raise RefusalError("no such model", 404)
        is_chat = "messages" in body
        _check(body, self.fault)
        prompts = [""] if is_chat else body["prompt"]
        prompts = [prompts] if isinstance(prompts, str) or _is_ids(prompts) else prompts
        if any(len(prompt) > CONTEXT for prompt in prompts):
            raise RefusalError("too long", 200 if self.fault == "context length" else 400)
        n = body.get("n") or 1
        choices = [self._choice(body, prompt, i, is_chat) for prompt in prompts for i in range(n)]
        for index, choice in enumerate(choices):
            choice["index"] = index % n if self.fault == "prompts times n" else index
        generated = sum(choice.pop("count") for choice in choices)
        usage = {"prompt_tokens": sum(map(len, prompts)) + is_chat, "completion_tokens": generated}
        usage["total_tokens"] = sum(usage.values()) + (self.fault == "usage's sum")
        kind = "chat.completion" if is_chat else "text_completion"
        kind = "list" if self.fault == ("chat's object" if is_chat else "object") else kind
        whole = {"object": kind, "choices": choices, "usage": usage}
        return self._stream(body, whole) if body.get("stream") else json_reply(200, whole)

    def _choice(self, body: Json, prompt: Any, i: int, is_chat: bool) -> Json:
        seed = body.get("seed")
        own = random.Random(f"{seed} {0 if self.fault == 'one race for n' else i}")
        source = self._random if seed is None or self.fault == "seed" else own
        if self.fault == "one seed" and seed is not None:
            source = random.Random(1)
        start = prompt if isinstance(prompt, str) else "a" * len(prompt)
        text, entries = start, []
        limit = body.get("max_tokens") or 16
        for _ in range(limit + (self.fault == "max_tokens")):
            p = self._distribution(text[-1:], len(text) - len(start))
            token = self._draw(p, body, source, text[len(start) :])
            entries.append((token, p))
            text += token
        text = text[len(start) :]
        reason, stop = "length", body.get("stop")
        if stop and stop in text and self.fault != "stop":
            text, reason = text[: text.index(stop)], "stop"
        forced = self._forced(body)
        if forced is not None:
            text, reason = forced, "stop"
        choice: Json = {"count": len(entries), "finish_reason": reason}
        if is_chat:
            choice["message"] = {"role": "assistant", "content": text}
            if body.get("logprobs") and self.fault != "chat's logprobs":
                choice["logprobs"] = {"content": self._content(entries)}
            return choice
        choice["text"] = text
        if body.get("logprobs") is not None and self.fault != "no logprobs":
            choice["logprobs"] = self._logprobs(entries, body["logprobs"])
        if body.get("echo") and self.fault != "echo":
            self._echo(choice, str(prompt), body)
        return choice

    def _distribution(self, last: str, depth: int) -> dict[str, float]:
        shift = ord(last or "a") % len(LETTERS)
        weights = [math.exp(-0.45 * ((i - shift) % len(LETTERS))) for i in range(len(LETTERS))]
        return {t: w / sum(weights) for t, w in zip(LETTERS, weights, strict=True)}

    def _draw(self, p: dict[str, float], body: Json, source: random.Random, before: str) -> str:
        temperature = body.get("temperature")
        if temperature is None:
            temperature = 0.6 if self.fault == "defaults" else 1
        if self.fault == "temperature":
            temperature = min(temperature, 1) and 1
        logits = {token: math.log(value) for token, value in p.items()}
        if self.fault != "bias" and body.get("logit_bias"):
            for key, value in body["logit_bias"].items():
                logits[LETTERS[int(key) % len(LETTERS)]] += value
        if self.fault != "penalty":
            for token in before:
                logits[token] -= body.get("frequency_penalty") or 0
        if not temperature:
            best = max(logits, key=lambda token: logits[token])
            if self.fault == "greedy" and self._random.random() < 0.2:
                return next(token for token in LETTERS if token != best)
            return best
        weights = {token: math.exp(value / temperature) for token, value in logits.items()}
        return self._pick(self._kept(weights, body), source, len(before))

    def _kept(self, weights: dict[str, float], body: Json) -> dict[str, float]:
        order = sorted(weights, key=lambda token: -weights[token])
        k = body.get("top_k") or 0
        if k and self.fault != "top_k":
            order = order[: k + (self.fault == "top_k + 1")]
        top_p = body.get("top_p", 1)
        if top_p < 1 and self.fault != "top_p":
            mass, total, num = 0.0, sum(weights.values()), 0
            while mass < top_p * total:
                mass += weights[order[num]]
                num += 1
            order = order[: num + (self.fault == "top_p + 1")]
        if self.fault != "min_p":
            least = (body.get("min_p") or 0) * weights[order[0]]
            order = [token for token in order if weights[token] >= least]
        return {token: 1.0 if self.fault == "flat" and k else weights[token] for token in order}

    def _pick(self, weights: dict[str, float], source: random.Random, depth: int) -> str:
        tokens = list(weights)
        if depth and self.fault == "speculation" and source.random() < 0.2:
            return max(tokens, key=lambda token: weights[token])
        if self.fault == "distribution":
            return source.choices(tokens, [w**1.5 for w in weights.values()])[0]
        return source.choices(tokens, list(weights.values()))[0]

    def _values(self, p: dict[str, float], num: int) -> dict[str, float]:
        order = sorted(p, key=lambda token: -p[token])[:num]
        shift = 0.3 if self.fault == "mass" else 0.0
        shift += 0.4 * num if self.fault == "number of tops" else 0.0
        return {token: min(math.log(p[token]) + shift, -1e-9) for token in order}

    def _logprobs(self, entries: list[tuple[str, dict[str, float]]], num: int) -> Json:
        tops = [self._values(p, num) for _, p in entries]
        values = [
            top.get(token, math.log(p[token]))
            for (token, p), top in zip(entries, tops, strict=True)
        ]
        if self.fault == "chosen":
            values = [value - 1e-4 for value in values]
        if self.fault == "positive":
            values = [value + 9 for value in values]
        offsets = [i + 3 * (i > 2 and self.fault == "offsets") for i in range(len(entries))]
        return {
            "tokens": [token for token, _ in entries],
            "token_logprobs": values,
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _content(self, entries: list[tuple[str, dict[str, float]]]) -> list[Json]:
        if self.fault == "chat's bytes":
            entries = entries[1:]
        return [
            {
                "token": token,
                "bytes": list(token.encode()),
                "logprob": math.log(p[token]),
                "top_logprobs": [
                    {"token": name, "logprob": value} for name, value in self._values(p, 2).items()
                ],
            }
            for token, p in entries
        ]

    def _echo(self, choice: Json, prompt: str, body: Json) -> None:
        choice["text"] = prompt + choice["text"]
        if (reported := choice.get("logprobs")) is None:
            return
        whole = [
            math.log(self._distribution(prompt[i - 1], 0).get(prompt[i], 1e-9))
            - 0.5 * (self.fault == "echo's values")
            for i in range(1, len(prompt))
        ]
        reported["tokens"] = [*prompt, *reported["tokens"]]
        reported["token_logprobs"] = [None, *whole, *reported["token_logprobs"]]

    def _forced(self, body: Json) -> str | None:
        kind = (body.get("response_format") or {}).get("type")
        if kind == "json_schema":
            return OBJECT.replace("3", '"3"') if self.fault == "schema" else OBJECT
        if kind == "json_object":
            return "{" if self.fault == "object's end" else "{}"
        if body.get("structured_outputs"):
            return "123-abc" if self.fault == "regex" else "123-ab"
        return None

    def _stream(self, body: Json, whole: Json) -> RemoteReply:
        events = []
        for choice in whole["choices"]:
            is_chat = "message" in choice
            text = choice["message"]["content"] if is_chat else choice["text"]
            if self.fault == ("chat's stream" if is_chat else "stream"):
                text = text[:3] + text[4:]
            for letter in text:
                part = {"delta": {"content": letter}} if is_chat else {"text": letter}
                events.append({"choices": [{"index": choice["index"], **part}]})
            events.append({"choices": [{"index": 0, "finish_reason": choice["finish_reason"]}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            last = whole["choices"][:1] if self.fault == "usage's chunk" else []
            events.append({"choices": last, "usage": whole["usage"]})
        lines = [f"data: {orjson.dumps(event).decode()}\n\n" for event in events]
        done = "" if self.fault == "done" else "data: [DONE]\n\n"
        kind = "text/plain" if self.fault == "type" else "text/event-stream"
        return RemoteReply(200, ("".join(lines) + done).encode(), kind)


def _is_ids(prompt: Any) -> bool:
    return bool(prompt) and all(isinstance(token, int) for token in prompt)


def _check(body: Json, fault: str | None) -> None:
    prompt, stop = body.get("prompt", "a"), body.get("stop")
    limit, logprobs = body.get("max_tokens", 1), body.get("logprobs") or 0
    if (
        (body.get("temperature") or 0) < 0
        or not isinstance(limit, int)
        or limit < 0
        or body.get("top_p", 1) > 1
        or body.get("n") == 0
        or prompt in ([], [-1])
        or isinstance(stop, list)
        or logprobs < 0
    ):
        raise RefusalError("out of bounds", 200 if fault == "bad fields" else 400)


def json_reply(status: int, content: Any) -> RemoteReply:
    return RemoteReply(status, orjson.dumps(content), "application/json")
