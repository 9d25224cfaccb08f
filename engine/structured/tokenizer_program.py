"""Reads a tokenizer in a process of its own: `python -m engine.structured.tokenizer_program`.

With the configuration on standard input it writes the tokenizer to standard output, as JSON of the
library tokenizers after a line that says "ok", or after a line that says "failed" the reason.
What transformers imports for it keeps an interpreter busy for seconds, which an engine that starts
has a better use for; here it does without torch.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import msgspec

from engine.config import StructuredConfig
from engine.errors import first_line
from engine.structured.without_torch import prepare_for_tokenizers

OK, FAILED = b"ok", b"failed"


def main() -> None:
    """Read the configuration, and answer."""
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=StructuredConfig)
    prepare_for_tokenizers(trust_remote_code=config.trust_remote_code)
    try:
        head, text = OK, serialized(config)
    except Exception as error:
        head, text = FAILED, first_line(error)
    with suppress(BrokenPipeError), sys.stdout.buffer as output:  # its reader may have been ended
        output.write(head + b"\n" + text.encode())


def serialized(config: StructuredConfig) -> str:
    """The tokenizer as the JSON of the library tokenizers, with the tokens added to it."""
    from transformers import AutoTokenizer  # seconds to import
    from transformers.utils import logging

    logging.set_verbosity_error()  # the server reads it too, and says what there is to say
    loaded = AutoTokenizer.from_pretrained(
        config.tokenizer, revision=config.revision, trust_remote_code=config.trust_remote_code
    )
    if not loaded.is_fast:
        raise ValueError(f"{type(loaded).__name__} is not one of the library tokenizers")
    backend: Any = loaded.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    text: str = backend.to_str()
    return text


if __name__ == "__main__":
    main()
