"""A tiny target and the steps of a few rows, in which drafters are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.attention.plain import PlainAttention
from engine.config import ModelConfig
from engine.contracts.drafter import Drafter
from engine.contracts.model import CausalLM
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.speculation.make_drafter import make_drafter
from engine.speculative_config import Method, SpeculativeConfig
from tests.engine.speculation.drafted_rows import (
    DraftedRows,
    NextLogits,
    Row,
    make_attention,
    make_rows,
)
from tests.engine.tiny_models import FUSED, VOCAB

CPU = torch.device("cpu")
NUM_TOKENS = 3
NUM_LAYERS = 6
DRAFT_IDS = sorted({(13 * i) % VOCAB for i in range(60)})
TargetFolder = tuple[Path, PreTrainedModel]


def prompt(length: int) -> list[int]:
    return [(11 * i + length) % VOCAB for i in range(length)]


def write_target(folder: Path) -> PreTrainedModel:
    """Save the target, whose weights are larger than usual, so that its choices are not ties."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**FUSED["llama"] | {"num_hidden_layers": NUM_LAYERS}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    return model.eval()


def drafted_rows(
    device: torch.device,
    target_folder: Path,
    next_logits: NextLogits | None,
    *,
    temperature: float,
    **fields: Any,
) -> DraftedRows:
    target_config = ModelConfig(model=str(target_folder), dtype="float32", max_model_len=64)
    target = load_model(target_config, device)
    assert isinstance(target, Decoder)
    rows, sampling = make_rows(VOCAB, temperature, device)
    fields = {"num_speculative_tokens": NUM_TOKENS} | fields
    if temperature > 0.0:
        fields["draft_sample_method"] = "gumbel"
    drafter = make_drafter(
        SpeculativeConfig(**fields), target_config, target, rows, sampling, make_attention
    )
    texts = [
        Row(prompt(21), limit=64),
        Row(prompt(3), limit=64),
        Row(prompt(9), limit=16),
    ]
    return DraftedRows(target, drafter, sampling, texts, next_logits)


def serve(rows: DraftedRows) -> None:
    """Steps that meet every case; the third row ends at its limit, 16 tokens."""
    rows.step({1: 3})
    rows.step({1: 0, 0: 8})
    rows.step({1: NUM_TOKENS, 0: 7, 2: 9})
    rows.step({1: 1, 2: 2, 0: 6})  # the chunk that ends row 0's prompt
    rows.step({0: NUM_TOKENS, 2: 0, 1: 2})
    rows.step({2: 1, 1: NUM_TOKENS, 0: 1})
    for accepted in (0, NUM_TOKENS, NUM_TOKENS, 2, 0):
        rows.step({0: accepted, 1: NUM_TOKENS - accepted})
    assert len(rows.rows[2].text) == 16
    assert rows.num_checked > 50


def load_drafter(
    target_folder: Path, head: Path, method: Method, target: CausalLM | None = None, **model: Any
) -> Drafter:
    """Make the drafter of a head's folder for a target, on the CPU."""
    settings: dict[str, Any] = {"max_model_len": 64, "device": "cpu"} | model
    target_config = ModelConfig(model=str(target_folder), **settings)
    target = target or load_model(target_config, CPU)
    config = SpeculativeConfig(method=method, model=str(head), num_speculative_tokens=3)
    rows, sampling = make_rows(target.vocab_size, 0.0, CPU)
    return make_drafter(config, target_config, target, rows, sampling, PlainAttention)


def check_graph(target_folder: Path, head: Path, method: str) -> None:
    """A graph on CUDA proposes what eager steps do, in its first replay and in later ones."""
    device = torch.device("cuda")
    rows = drafted_rows(
        device, target_folder, None, temperature=0.7, method=method, model=str(head)
    )
    rows.step({0: 21})
    rows.step({1: 3})
    step, drafter = rows.step({0: 1, 1: 2}), rows.drafter
    eager = [rows.rows[0].drafts, rows.rows[1].drafts]
    assert drafter.draft_logits is not None
    expected = drafter.draft_logits.clone()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drafts = drafter.propose(step)
    torch.cuda.synchronize()
    for _ in range(2):
        drafter.draft_logits.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert drafts.tolist() == eager
        assert torch.equal(drafter.draft_logits[:2], expected[:2])
