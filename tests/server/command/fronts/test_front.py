"""What a front's process does without."""

from __future__ import annotations

import subprocess
import sys

from demo import MODEL_FOLDER

_PROGRAM = f"""
import sys
from engine.structured.without_torch import leave_torch_out
leave_torch_out()
from server.text.tokenizer import load_tokenizer
import server.app
assert load_tokenizer({str(MODEL_FOLDER)!r}).encode("import os")
assert not [name for name in sys.modules if name.startswith("torch.")]
from transformers.utils.chat_template_utils import render_jinja_template
"""


def test_a_front_imports_no_torch_and_says_nothing_of_it() -> None:
    command = [sys.executable, "-c", _PROGRAM]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
