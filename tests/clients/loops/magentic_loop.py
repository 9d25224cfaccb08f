"""A chain of prompts of the package `magentic`.

It reads annotations, which must not be strings.
"""

from magentic import prompt_chain
from magentic.chat_model.openai_chat_model import OpenaiChatModel
from toolbox import add, arguments, multiply, note, report

base_url, model, question = arguments()
chat = OpenaiChatModel(model, base_url=base_url, api_key="none", temperature=0)


@prompt_chain("{question}", functions=[add, multiply], model=chat)
def answered(question: str) -> str: ...  # type: ignore[empty-body]


note("chat", answered(question))
report()
