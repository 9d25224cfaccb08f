"""An agent of the package `strands-agents`, streamed as it always is, and not."""

from __future__ import annotations

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel
from toolbox import add, arguments, multiply, note, report

base_url, model, question = arguments()
client = {"base_url": base_url, "api_key": "none"}
models = {
    "chat": OpenAIModel(client_args=client, model_id=model, params={"temperature": 0}),
    "responses": OpenAIResponsesModel(
        client_args=client, model_id=model, params={"temperature": 0}
    ),
}
for name, each in models.items():
    agent = Agent(model=each, tools=[tool(add), tool(multiply)], callback_handler=None)
    note(name, agent(question))
report()
