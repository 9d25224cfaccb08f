"""Families whose layers keep states on a GPU: kernels, graphs, and drafts in them, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import ModelConfig
from engine.models.loader import load_model
from engine.speculative_config import DraftSampleMethod, SpeculativeConfig
from engine.startup.error_statement import hidden_states
from tests.engine.models.families.hybrid_models import (
    FAMILIES,
    VOCAB,
    config_of,
    prompt,
    repetitive,
    write_hybrid,
)
from tests.engine.models.families.hybrid_server import Server, serve
from tests.engine.models.serving import mean_kl
from tests.engine.speculation.tiny_mtp import write_with_mtp

pytestmark = pytest.mark.gpu
HIDDEN = 256
"""Heads of attention are then 64 and 128 wide, as kernels for prompts take them."""


@pytest.fixture(scope="module", params=FAMILIES)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_hybrid(config_of(request.param, HIDDEN), folder)


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_served_as_transformers_computes(model: tuple[Path, Any], num_drafts: int) -> None:
    """Prompts in chunks beside decoding rows, hits of prefixes, and drafts, in captured steps."""
    speculation = None
    if num_drafts:
        speculation = SpeculativeConfig(
            method="ngram",
            num_speculative_tokens=num_drafts,
            prompt_lookup_min=1,
            prompt_lookup_max=3,
        )
    server: Server = serve(*model, speculation=speculation, device="cuda", max_step_tokens=48)
    for text in (repetitive(30), prompt(50), repetitive(45), prompt(1), prompt(17)):
        server.submit(text, max_tokens=24)
    server.run()
    reply = server.ask(prompt(50) + server.replies[1].tokens[:9], max_tokens=20)
    assert reply.num_cached > 0
    torch.cuda.synchronize()


@torch.inference_mode()
def test_bfloat16(model: tuple[Path, Any]) -> None:
    """The divergence from float32 is at most that of transformers in bfloat16 on the same GPU."""
    folder, reference = model
    ids = torch.tensor(prompt(200, seed=2) + repetitive(40))
    wanted = reference(input_ids=ids[None], use_cache=False).logits[0]
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).cuda()
    own = theirs(input_ids=ids[None].cuda(), use_cache=False).logits[0].float().cpu()
    config = ModelConfig(model=str(folder), dtype="bfloat16")
    loaded = load_model(config, torch.device("cuda"))
    got = loaded.logits(hidden_states(loaded, ids.cuda(), None)).cpu()
    # A token that takes another expert is off by far more than by rounding, in either run.
    has_experts = hasattr(reference.config, "num_experts_per_tok")
    share = 0.8 if has_experts else 1.0
    bound = 1.1 * mean_kl(own, wanted, share=share)
    assert mean_kl(got, wanted, share=share) <= bound


@pytest.mark.parametrize("method", ["greedy", "gumbel"])
def test_drafted_by_the_checkpoints_own_head(tmp_path: Path, method: DraftSampleMethod) -> None:
    """Turns after cached turns, drafted by the head, in captured steps."""
    layers = ["linear_attention"] * 3 + ["full_attention"]
    target, _ = write_with_mtp(tmp_path, layers, VOCAB, hidden_size=HIDDEN, head_dim=64)
    speculation = SpeculativeConfig(
        method="mtp", num_speculative_tokens=3, draft_sample_method=method
    )
    server = serve(tmp_path, target, speculation=speculation, device="cuda", max_step_tokens=48)
    texts = [prompt(length, seed=length) for length in (20, 33, 4)]
    for turn in range(2):
        handles = [server.submit(text, max_tokens=12) for text in texts]
        server.run()
        replies = [server.replies[handle] for handle in handles]
        assert turn == 0 or any(reply.num_cached for reply in replies)
        texts = [each.prompt + each.tokens + prompt(5, seed=turn) for each in replies]
