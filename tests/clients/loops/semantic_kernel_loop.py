"""An agent of the package `semantic-kernel`, which calls functions itself, plain and streamed."""

from __future__ import annotations

import asyncio

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import (
    OpenAIChatCompletion,
    OpenAIChatPromptExecutionSettings,
)
from semantic_kernel.contents import ChatHistory
from semantic_kernel.functions import kernel_function
from toolbox import add, arguments, multiply, note, report


async def main() -> None:
    """Run the loop both ways."""
    base_url, model, question = arguments()
    client = AsyncOpenAI(base_url=base_url, api_key="none")
    service = OpenAIChatCompletion(ai_model_id=model, async_client=client)
    settings = OpenAIChatPromptExecutionSettings(
        temperature=0, function_choice_behavior=FunctionChoiceBehavior.Auto()
    )
    kernel = Kernel()
    for function in (add, multiply):
        kernel.add_function("numbers", kernel_function(function))

    def history() -> ChatHistory:
        """A conversation that asks."""
        asked = ChatHistory()
        asked.add_user_message(question)
        return asked

    said = await service.get_chat_message_content(history(), settings, kernel=kernel)
    note("chat", said)
    parts = service.get_streaming_chat_message_content(history(), settings, kernel=kernel)
    note("chat, a stream", "".join([str(part) async for part in parts if part]))
    report()


asyncio.run(main())
