"""Formats of a folder of templates: `python -m tests.conformance.chat_templates FOLDER`.

Such folders are in the sources of other servers (`models/templates` of llama.cpp, `examples` of
vLLM). Every `*.jinja` in it is asked for its formats as a server does at startup. A template that
shows tools and whose calls are not known counts as missed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from server.conversation.parsing.recognise import knows_tools
from server.conversation.template_rendering import Conversation, Rendering, learn_formats

SPECIAL = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "<|end_of_text|>", "<eos>")
"""Ends of replies in many vocabularies: a server knows its model's own."""


def main(folder: Path) -> int:
    """Print a line for each template and the count; returns the number of those missed."""
    asked = missed = 0
    for path in sorted(folder.rglob("*.jinja")):
        source = path.read_text()
        tools, reasoning, _ = learn_formats(Rendering(source, Conversation([]), SPECIAL), ENDS)
        if not knows_tools(source):
            continue
        asked += 1
        missed += tools is None
        calls = "none" if tools is None else f"{tools.names[0]} {tools.syntax.trigger!r}"
        thoughts = "" if reasoning is None else f"; thoughts {reasoning.begin!r} {reasoning.end!r}"
        print(f"{path.name}: calls {calls}{thoughts}")
    print(f"{asked - missed} of {asked} templates with tools")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(Path(sys.argv[1])), 255))
