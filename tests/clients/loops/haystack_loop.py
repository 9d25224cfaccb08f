"""An agent of the package `haystack-ai`."""

from __future__ import annotations

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from toolbox import PARAMETERS, TOOLS, arguments, note, report

base_url, model, question = arguments()
tools = [
    Tool(name=name, description=f"To {name} two numbers.", parameters=PARAMETERS, function=function)
    for name, function in TOOLS.items()
]
for name, callback in {"chat": None, "chat, a stream": lambda _: None}.items():
    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        api_base_url=base_url,
        model=model,
        streaming_callback=callback,
        generation_kwargs={"temperature": 0},
    )
    agent = Agent(chat_generator=generator, tools=tools)
    note(name, agent.run([ChatMessage.from_user(question)])["messages"][-1].text)
report()
