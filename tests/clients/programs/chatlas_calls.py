"""Calls of the package `chatlas`, over chats and over Responses."""

from __future__ import annotations

from typing import Any

from asked import arguments, report
from chatlas import ChatOpenAI, ChatOpenAICompletions
from structured import STRUCTURED_TOKENS, Answer, checked

base_url, model, prompt, max_tokens = arguments()
server = {"base_url": base_url, "api_key": "none", "model": model}
texts: dict[str, Any] = {}
for name, make in {"chats": ChatOpenAICompletions, "responses": ChatOpenAI}.items():

    def chat(tokens: int, make: Any = make) -> Any:
        """A conversation that has not begun."""
        made = make(**server)
        made.set_model_params(temperature=0, max_tokens=tokens)
        return made

    texts[f"chat of {name}"] = str(chat(max_tokens).chat(prompt, echo="none", stream=False))
    texts[f"chat of {name}, a stream"] = "".join(chat(max_tokens).stream(prompt, echo="none"))
    found = chat(STRUCTURED_TOKENS).chat_structured(prompt, data_model=Answer, echo="none")
    texts[f"structured of {name}"] = checked(found)
report(texts)
