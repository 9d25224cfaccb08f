"""Calls of the package `langchain-openai`."""

from __future__ import annotations

from asked import arguments, report
from langchain_openai import ChatOpenAI, OpenAI
from structured import Answer

base_url, model, prompt, max_tokens = arguments()
common = {
    "base_url": base_url,
    "api_key": "none",
    "model": model,
    "temperature": 0,
    "max_tokens": max_tokens,
}
plain, chat = OpenAI(**common), ChatOpenAI(**common)
texts = {
    "completion": plain.invoke(prompt),
    "completion stream": "".join(plain.stream(prompt)),
    "chat": chat.invoke(prompt).content,
    "chat stream": "".join(chunk.content for chunk in chat.stream(prompt)),
}
parsing = ChatOpenAI(**common | {"max_tokens": 200})
structured = parsing.with_structured_output(Answer, method="json_schema")
found = structured.invoke(prompt)
assert isinstance(found, Answer)
*_, last = structured.stream(prompt)
texts["structured"], texts["structured stream"] = found.model_dump_json(), last.model_dump_json()
report(texts)
