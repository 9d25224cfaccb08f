"""An agent of the packages `autogen-agentchat` and `autogen-ext`, plain and streamed."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from toolbox import add, arguments, multiply, note, report


async def main() -> None:
    """Run the loop both ways."""
    base_url, model, question = arguments()
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=base_url,
        api_key="none",
        temperature=0,
        model_info={
            "vision": False,
            "function_calling": True,
            "json_output": True,
            "structured_output": True,
            "family": "unknown",
        },
    )
    for streams in (False, True):
        agent = AssistantAgent(
            "calculator",
            client,
            tools=[add, multiply],
            system_message=None,
            max_tool_iterations=5,
            model_client_stream=streams,
        )
        result = await agent.run(task=question)
        note(f"chat{', a stream' * streams}", result.messages[-1].content)
    report()


asyncio.run(main())
