"""The float64 references against transformers' own modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from engine.kernels.recurrent import reference

TOLERANCE: dict[str, Any] = {"atol": 2e-5, "rtol": 0.0}
"""Theirs are float32, of 40 tokens: 40 steps of 16 + 8 roundings each of numbers below 4."""


def assert_theirs(
    rule: Callable[..., Any],
    qkv: tuple[torch.Tensor, ...],
    decay: torch.Tensor,
    beta: torch.Tensor,
    out: torch.Tensor,
    state: torch.Tensor,
) -> None:
    """Assert that transformers' rule gives these outputs and this last state."""
    theirs, their_state = rule(
        *(each[None] for each in qkv),
        g=decay[None],
        beta=beta[None],
        initial_state=None,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    torch.testing.assert_close(theirs[0].double(), out, **TOLERANCE)
    torch.testing.assert_close(their_state[0].double().mT, state, **TOLERANCE)


def test_gated_delta_rule() -> None:
    q, k = torch.randn(40, 2, 8), torch.randn(40, 2, 8)
    v, beta, decay = torch.randn(40, 4, 8), torch.rand(40, 4), -torch.rand(40, 4)
    out, state = reference.gated_delta_rule(q, k, v, decay, beta)
    for rule in (qwen.torch_recurrent_gated_delta_rule, qwen.torch_chunk_gated_delta_rule):
        assert_theirs(rule, (q, k, v), decay, beta, out, state)


def test_delta_rule_with_a_decay_a_channel() -> None:
    q, k, v = (torch.randn(40, 3, 8) for _ in range(3))
    beta, decay = torch.rand(40, 3), -torch.rand(40, 3, 8)
    out, state = reference.gated_delta_rule(q, k, v, decay, beta)
    assert_theirs(kimi.recurrent_kimi_delta_attention, (q, k, v), decay, beta, out, state)
