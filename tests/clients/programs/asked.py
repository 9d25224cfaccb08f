"""What the programs of this folder are given, and what they report."""

from __future__ import annotations

import json
import sys
from typing import Any


def arguments() -> tuple[str, str, str, int]:
    """The address, the model, the prompt and the number of tokens."""
    base_url, model, prompt = sys.argv[1:4]
    return base_url, model, prompt, int(sys.argv[4])


def report(texts: dict[str, Any]) -> None:
    """Print the texts as the last line."""
    print(json.dumps(texts))
