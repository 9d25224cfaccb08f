"""Streams: their chunks join to the plain reply, their usage is its."""

from __future__ import annotations

from server.conformance.result import Found
from server.conformance.subject import CHAT, COMPLETIONS, Json, Subject

MESSAGES = [{"role": "user", "content": "Count to three."}]


def _joined(chunks: list[Json]) -> tuple[str, str | None]:
    """The text of the only choice of a stream, and why it ended."""
    text, reason = "", None
    for chunk in chunks:
        for part in chunk.get("choices") or ():
            delta = part.get("delta") or {}
            text += part.get("text") or delta.get("content") or ""
            reason = part.get("finish_reason") or reason
    return text, reason


def completion(subject: Subject) -> Found:
    """A greedy stream joins to the plain reply, reason included; so does a seeded one."""
    for fields in ({"temperature": 0}, {**subject.neutral, "seed": 11}):
        body = {"prompt": subject.prompt, "max_tokens": 16, **fields}
        plain = subject.ask(COMPLETIONS, body)["choices"][0]
        joined = _joined(subject.events(COMPLETIONS, body))
        if joined != (plain["text"], plain["finish_reason"]):
            words = f"{joined} for {(plain['text'], plain['finish_reason'])}"
            return Found(passed=False, measured=words[:100], wanted="the plain reply")
    return Found(passed=True, measured="equal, greedy and seeded")


def chat(subject: Subject) -> Found:
    """A greedy chat's stream joins to the plain message."""
    body = {**subject.greedy, "messages": MESSAGES}
    plain = subject.ask(CHAT, body)["choices"][0]
    wanted = plain["message"].get("content") or "", plain["finish_reason"]
    joined = _joined(subject.events(CHAT, body))
    words = "equal" if joined == wanted else f"{joined} for {wanted}"[:100]
    return Found(passed=joined == wanted, measured=words, wanted="the plain message")


def ends_with_done(subject: Subject) -> Found:
    """A stream is server-sent events of JSON, the last of which is [DONE]."""
    reply = subject.send(COMPLETIONS, {**subject.greedy, "prompt": subject.prompt, "stream": True})
    lines = [line for line in reply.body.splitlines() if line.strip()]
    events = sum(line.startswith((b"data:", b":", b"event:", b"id:")) for line in lines)
    last = lines[-1].decode() if lines else "nothing"
    passed = last.removeprefix("data:").strip() == "[DONE]" and events == len(lines)
    return Found(passed=passed, measured=last[:60], wanted="data: [DONE]")


def usage(subject: Subject) -> Found:
    """With include_usage the last chunk has no choices, and the usage of the plain reply."""
    body = {**subject.greedy, "prompt": subject.prompt}
    plain = subject.ask(COMPLETIONS, body).get("usage") or {}
    options = {"stream_options": {"include_usage": True}}
    last = subject.events(COMPLETIONS, {**body, **options})[-1]
    usage = last.get("usage") or {}
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    passed = last.get("choices") == [] and all(usage.get(n) == plain.get(n) for n in names)
    counts = [usage.get(name) for name in names]
    return Found(
        passed=passed,
        measured=f"{len(last.get('choices') or ())} choices, {counts}",
        wanted=f"0 choices, {[plain.get(name) for name in names]}",
    )
