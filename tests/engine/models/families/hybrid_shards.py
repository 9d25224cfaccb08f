"""Hybrid models that ranks divide."""

from __future__ import annotations

WHOLE_NORM = ("granite", "granite_experts")
"""Families whose gated norm is over all heads together."""
