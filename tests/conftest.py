"""What all tests share: in Triton's interpreter, that they lose no time."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.interpreter import quicken

    quicken()
