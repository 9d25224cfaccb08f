"""An agent of the package `openai-agents`, over chats and over Responses, plain and streamed."""

from __future__ import annotations

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from toolbox import add, arguments, multiply, note, report


async def main() -> None:
    """Let both kinds of model run the loop."""
    base_url, model, question = arguments()
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    models = {
        "chat": OpenAIChatCompletionsModel(model=model, openai_client=client),
        "responses": OpenAIResponsesModel(model=model, openai_client=client),
    }
    for name, each in models.items():
        agent = Agent(
            name="calculator",
            model=each,
            model_settings=ModelSettings(temperature=0),
            tools=[function_tool(add), function_tool(multiply)],
        )
        note(name, (await Runner.run(agent, question)).final_output)
        if name == "responses":
            run = await Runner.run(agent, question, auto_previous_response_id=True)
            note("responses, by their ids", run.final_output)
        streamed = Runner.run_streamed(agent, question)
        async for _ in streamed.stream_events():
            pass
        note(f"{name}, a stream", streamed.final_output)
    report()


asyncio.run(main())
