"""What TRL imports of vLLM on the trainer's side; its server mode makes no engine."""

from __future__ import annotations


class LLM:
    """An engine in the trainer's process, which server mode never makes."""


class RequestOutput:
    """What such an engine gives."""


class SamplingParams:
    """How such an engine draws."""
