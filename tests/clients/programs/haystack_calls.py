"""Calls of the package `haystack-ai`."""

from __future__ import annotations

from typing import Any

from asked import arguments, report
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from structured import STRUCTURED_TOKENS, Answer, checked

base_url, model, prompt, max_tokens = arguments()
generator = OpenAIChatGenerator(
    api_key=Secret.from_token("none"), api_base_url=base_url, model=model
)
messages = [ChatMessage.from_user(prompt)]


def said(callback: Any = None, **options: Any) -> str:
    """What the model says."""
    kwargs = {"temperature": 0, "max_tokens": max_tokens, **options}
    found = generator.run(messages, streaming_callback=callback, generation_kwargs=kwargs)
    return str(found["replies"][0].text)


pieces: list[str] = []
texts = {"chat": said(), "chat of a stream": said(lambda chunk: pieces.append(chunk.content))}
texts["chat of pieces"] = "".join(pieces)
structured = said(response_format=Answer, max_tokens=STRUCTURED_TOKENS)
texts["structured"] = checked(structured)
report(texts)
