"""Calls of the package `llama-index-llms-openai-like`."""

from __future__ import annotations

from asked import arguments, report
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

base_url, model, prompt, max_tokens = arguments()
common = {
    "api_base": base_url,
    "api_key": "none",
    "model": model,
    "temperature": 0,
    "max_tokens": max_tokens,
}
plain = OpenAILike(is_chat_model=False, **common)
chat = OpenAILike(is_chat_model=True, **common)
messages = [ChatMessage(role="user", content=prompt)]
texts = {
    "completion": plain.complete(prompt).text,
    "completion stream": "".join(part.delta or "" for part in plain.stream_complete(prompt)),
    "chat": chat.chat(messages).message.content,
    "chat stream": "".join(part.delta or "" for part in chat.stream_chat(messages)),
}
report(texts)
