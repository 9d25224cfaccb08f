"""Where a Triton kernel's tests run: in the interpreter, and on a GPU as it is."""

from __future__ import annotations

import pytest

from sampling.device.triton_support import INTERPRETED

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
