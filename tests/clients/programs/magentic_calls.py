"""Calls of the package `magentic`, whose functions are prompts.

It reads annotations, which must not be strings.
"""

from asked import arguments, report
from magentic import StreamedStr
from magentic import prompt as asks
from magentic.chat_model.openai_chat_model import OpenaiChatModel
from structured import STRUCTURED_TOKENS, Answer, checked

base_url, model, prompt, max_tokens = arguments()


def model_of(tokens: int) -> OpenaiChatModel:
    """The server's model with so many tokens."""
    return OpenaiChatModel(
        model, base_url=base_url, api_key="none", max_tokens=tokens, temperature=0
    )


@asks("{text}", model=model_of(max_tokens))
def said(text: str) -> str: ...  # type: ignore[empty-body]


@asks("{text}", model=model_of(max_tokens))
def streamed(text: str) -> StreamedStr: ...


@asks("{text}", model=model_of(STRUCTURED_TOKENS))
def judged(text: str) -> Answer: ...


texts = {
    "chat": said(prompt),
    "chat of a stream": "".join(streamed(prompt)),
    "structured": checked(judged(prompt)),
}
report(texts)
