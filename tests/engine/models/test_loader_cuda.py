"""The models on a GPU, over plain attention: same logits as on the CPU, and no waiting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    Cohere2Config,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MptConfig,
    Olmo2Config,
    PhiConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from engine.contracts.model import ModelInputs
from tests.engine.models.serving import (
    GROUPED,
    VOCAB,
    PagedRows,
    expected,
    load,
    serve,
    some_ids,
    write_tiny,
)

pytestmark = pytest.mark.gpu

EVERY_OTHER = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 11}
FUSED = {
    "llama": LlamaConfig(**GROUPED, attention_bias=True),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16, tie_word_embeddings=True),
}
FUSED |= {
    "qwen3_moe": Qwen3MoeConfig(
        **GROUPED, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=16, head_dim=16
    ),
    "gemma2": Gemma2Config(
        **GROUPED, **EVERY_OTHER, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=2.0
    ),
    "cohere2": Cohere2Config(**GROUPED, **EVERY_OTHER, logit_scale=1.0),
    "olmo2": Olmo2Config(**GROUPED),
    "phi": PhiConfig(**GROUPED),
    "gemma3": Gemma3TextConfig(**GROUPED, **EVERY_OTHER, head_dim=8, query_pre_attn_scalar=8),
    "qwen2_moe": Qwen2MoeConfig(
        **GROUPED, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=16
    ),
}
MODELS = FUSED | {
    "gpt_oss": GptOssConfig(
        **GROUPED, **EVERY_OTHER, head_dim=8, num_local_experts=4, num_experts_per_tok=2
    ),
    "mpt": MptConfig(
        d_model=48, n_heads=6, n_layers=2, vocab_size=VOCAB, max_seq_len=128, expansion_ratio=2
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_float32_logits(name: str, tmp_path: Path) -> None:
    reference, ids = write_tiny(MODELS[name], tmp_path), some_ids()
    logits = serve(load(tmp_path, on="cuda", dtype="float32"), ids, on="cuda")
    torch.testing.assert_close(logits, expected(reference, ids), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_stays_near(name: str, tmp_path: Path) -> None:
    reference, ids = write_tiny(MODELS[name], tmp_path), some_ids()
    logits = serve(load(tmp_path, on="cuda", dtype="bfloat16"), ids, on="cuda")
    wanted = expected(reference, ids)
    errors = (logits - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    # Some thirty roundings of independent sign; a token that takes another expert is off.
    assert errors.median() < 30**0.5 * torch.finfo(torch.bfloat16).eps


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("parts", [[(0, 0, 1), (1, 0, 1)], [(0, 0, 9), (1, 0, 1), (2, 0, 9)]])
@pytest.mark.parametrize("name", FUSED)
def test_a_step_waits_for_nothing(
    name: str, parts: list[tuple[int, int, int]], tmp_path: Path, no_waiting: None
) -> None:
    write_tiny(FUSED[name], tmp_path)
    model = load(tmp_path, on="cuda", dtype="bfloat16")
    rows = PagedRows(model, 3, on="cuda")
    inputs, positions = rows.inputs(parts)
    input_ids = torch.zeros(len(positions), dtype=torch.int32, device="cuda")
    logits = []
    with torch.inference_mode():
        for mode in ("default", "error"):  # once to compile; then what waits raises
            torch.cuda.set_sync_debug_mode(mode)
            rows.attention.begin(inputs)
            hidden = model.forward(ModelInputs(input_ids, positions, rows.attention))
            logits.append(model.logits(hidden.final))
    torch.cuda.set_sync_debug_mode("default")
    assert logits[1].isfinite().all()
    torch.testing.assert_close(logits[1], logits[0])
