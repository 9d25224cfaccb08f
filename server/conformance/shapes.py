"""Replies: their parts, their usage, how many choices there are and in which order."""

from __future__ import annotations

from server.conformance.result import Found
from server.conformance.subject import COMPLETIONS, Subject


def completion(subject: Subject) -> Found:
    """A completion has the parts and the usage that OpenAI's have."""
    reply = subject.complete()
    choice, usage = reply["choices"][0], reply.get("usage") or {}
    wrong = []
    if reply.get("object") != "text_completion":
        wrong.append(f"object is {reply.get('object')!r}")
    if choice.get("index") != 0:
        wrong.append(f"index is {choice.get('index')!r}")
    if choice.get("finish_reason") not in ("stop", "length"):
        wrong.append(f"finish_reason is {choice.get('finish_reason')!r}")
    if not 1 <= usage.get("completion_tokens", 0) <= 8:
        wrong.append(f"completion_tokens is {usage.get('completion_tokens')!r} of at most 8")
    parts = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    if usage.get("total_tokens") != parts:
        wrong.append(f"total_tokens is {usage.get('total_tokens')!r}, parts sum to {parts}")
    return Found(passed=not wrong, measured="; ".join(wrong) or "all parts")


def chat(subject: Subject) -> Found:
    """A chat has the parts and the usage that OpenAI's have."""
    reply = subject.chat()
    message, usage = reply["choices"][0].get("message") or {}, reply.get("usage") or {}
    wrong = []
    if reply.get("object") != "chat.completion":
        wrong.append(f"object is {reply.get('object')!r}")
    if message.get("role") != "assistant" or not isinstance(message.get("content"), str | None):
        wrong.append("message is no assistant's text")
    parts = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
    if usage.get("total_tokens") != parts or not parts:
        wrong.append(f"total_tokens is {usage.get('total_tokens')!r}, parts sum to {parts}")
    return Found(passed=not wrong, measured="; ".join(wrong) or "all parts")


def max_tokens(subject: Subject) -> Found:
    """A choice of one token ends by length, and is billed as one."""
    reply = subject.complete(max_tokens=1)
    reason = reply["choices"][0].get("finish_reason")
    count = (reply.get("usage") or {}).get("completion_tokens")
    passed = reason in ("length", "stop") and count == 1
    return Found(passed=passed, measured=f"{count} tokens, {reason}", wanted="1 token, length")


def prompts_times_n(subject: Subject) -> Found:
    """Two prompts with n = 2 give choices 0 to 3."""
    fields = {"prompt": [subject.prompt, "One two"], "n": 2, "temperature": 1}
    indices = [choice.get("index") for choice in subject.complete(**fields)["choices"]]
    return Found(passed=indices == [0, 1, 2, 3], measured=str(indices), wanted="[0, 1, 2, 3]")


def token_ids(subject: Subject) -> Found:
    """A prompt of token ids is taken."""
    reply = subject.complete(prompt=[5, 6, 7])
    count = (reply.get("usage") or {}).get("prompt_tokens")
    return Found(passed=count == 3, measured=f"prompt_tokens {count}", wanted="3")


def models(subject: Subject) -> Found:
    """The list of models has the one that answers."""
    content = subject.remote.get("/v1/models").json()
    data = content.get("data") if isinstance(content, dict) else None
    names = [str(card.get("id")) for card in data] if isinstance(data, list) else []
    return Found(passed=subject.model in names, measured=", ".join(names)[:60] or "none")


def stop_string(subject: Subject) -> Found:
    """A text ends before a stop string, with the reason "stop"; so does a stream's."""
    text = subject.choice(max_tokens=16)["text"]
    stop = text[2:5]
    wanted = text[: text.index(stop)]
    body = {**subject.greedy, "prompt": subject.prompt, "max_tokens": 16, "stop": stop}
    choice = subject.ask(COMPLETIONS, body)["choices"][0]
    chunks = subject.events(COMPLETIONS, body)
    streamed = "".join(part.get("text") or "" for c in chunks for part in c["choices"])
    shown = choice["text"], streamed, choice["finish_reason"]
    passed = shown == (wanted, wanted, "stop")
    return Found(passed=passed, measured=str(shown)[:80], wanted=str((wanted, wanted, "stop"))[:80])
