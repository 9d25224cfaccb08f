"""The shipped tokenizer, which has a chat's markers."""

from functools import cache

from tokenizers import Tokenizer

from demo import MODEL_FOLDER


@cache
def chat_tokenizer() -> Tokenizer:
    """One for all tests, which do not change it."""
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
