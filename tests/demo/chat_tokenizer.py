"""The shipped vocabulary, with a chat's markers at its end as training makes it."""

import json
from functools import cache

from tokenizers import Tokenizer

from demo import MODEL_FOLDER
from demo.chat import MARKERS
from demo.tokens import FIRST_MARKER_ID


@cache
def chat_tokenizer() -> Tokenizer:
    """A tokenizer whose last ids are the markers, whatever was learned last having given way."""
    content = json.loads((MODEL_FOLDER / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    kept = {token: token_id for token, token_id in vocabulary.items() if token_id < FIRST_MARKER_ID}
    merges = content["model"]["merges"]
    content["model"]["merges"] = merges[: len(merges) - len(vocabulary) + len(kept)]
    content["model"]["vocab"] = kept
    content["added_tokens"] = content["added_tokens"][:1]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens(list(MARKERS))
    return tokenizer
