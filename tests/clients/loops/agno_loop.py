"""An agent of the package `agno`, over chats and over Responses."""

from __future__ import annotations

from agno.agent import Agent
from agno.models.openai import OpenAIResponses
from agno.models.openai.like import OpenAILike
from toolbox import add, arguments, multiply, note, report

base_url, model, question = arguments()
common = {"id": model, "base_url": base_url, "api_key": "none", "temperature": 0}
for name, kind in {"chat": OpenAILike, "responses": OpenAIResponses}.items():
    agent = Agent(model=kind(**common), tools=[add, multiply], telemetry=False)
    note(name, agent.run(question).content)
    pieces = [event.content or "" for event in agent.run(question, stream=True)]
    note(f"{name}, a stream", "".join(pieces))
report()
