"""A loop of tools of the package `chatlas`, over chats and over Responses."""

from __future__ import annotations

from chatlas import ChatOpenAI, ChatOpenAICompletions
from toolbox import add, arguments, multiply, note, report

base_url, model, question = arguments()
for name, make in {"chat": ChatOpenAICompletions, "responses": ChatOpenAI}.items():
    for streams in (False, True):
        chat = make(base_url=base_url, api_key="none", model=model)
        chat.set_model_params(temperature=0)
        chat.register_tool(add)
        chat.register_tool(multiply)
        said = chat.chat(question, echo="none", stream=streams)
        note(f"{name}{', a stream' * streams}", said)
report()
