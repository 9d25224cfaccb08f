"""Drafters over paged caches against the same mathematics over a whole text at once.

Every proposal of every step is checked: prompts in chunks beside decoding rows, drafts refused
and kept in all numbers, limits reached, tables with other rows' blocks behind them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.speculation.make_drafter import make_drafter
from engine.speculative_config import SpeculativeConfig
from tests.engine.speculation.drafted_rows import (
    DEVICES,
    DraftedRows,
    NextLogits,
    Row,
    make_attention,
    make_rows,
)
from tests.engine.speculation.tiny_heads import (
    PlainEagle1,
    PlainEagle3,
    write_eagle1,
    write_eagle3,
)
from tests.engine.speculation.tiny_mtp import write_with_mtp
from tests.engine.speculation.tiny_next_layers import KINDS, write_with_next_layers
from tests.engine.tiny_models import FUSED, VOCAB, write_model

NUM_TOKENS = 3
NUM_LAYERS = 6
DRAFT_IDS = sorted({(13 * i) % VOCAB for i in range(60)})
TargetFolder = tuple[Path, PreTrainedModel]


def prompt(length: int) -> list[int]:
    return [(11 * i + length) % VOCAB for i in range(length)]


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> TargetFolder:
    folder = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**FUSED["llama"] | {"num_hidden_layers": NUM_LAYERS}))
    with torch.no_grad():  # larger than the usual start, so that greedy choices are not ties
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    return folder, model.eval()


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("bias", [False, True])
def test_eagle(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    bias: bool,
    temperature: float,
) -> None:
    folder, peer = target_folder
    head = PlainEagle1(write_eagle1(tmp_path, bias=bias), peer)
    serve(
        drafted_rows(
            device, folder, head, temperature=temperature, method="eagle", model=str(tmp_path)
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("draft_ids", [None, DRAFT_IDS])
def test_eagle3(
    device: torch.device,
    target_folder: TargetFolder,
    tmp_path: Path,
    draft_ids: list[int] | None,
    temperature: float,
) -> None:
    """With an embedding of its own and the usual layers, or a reduced vocabulary and others."""
    folder, peer = target_folder
    named = {} if draft_ids is None else {"eagle_aux_hidden_state_layer_ids": [4, 0, 3]}
    layers = (1, 2, 2) if draft_ids is None else (4, 0, 3)
    tensors = write_eagle3(tmp_path, draft_ids=draft_ids, eagle_config=named)
    head = PlainEagle3(tensors, peer, layers)
    serve(
        drafted_rows(
            device, folder, head, temperature=temperature, method="eagle3", model=str(tmp_path)
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_draft_model(
    device: torch.device, target_folder: TargetFolder, tmp_path: Path, kind: str, temperature: float
) -> None:
    """A fused draft model, and one on transformers' modules."""
    folder, _ = target_folder
    peer = write_model(kind, tmp_path, seed=3).eval()

    def next_logits(text: list[int], drafts: list[int]) -> torch.Tensor:
        logits: torch.Tensor = peer(input_ids=torch.tensor([text + drafts])).logits[0, -1]
        return logits

    serve(
        drafted_rows(
            device,
            folder,
            next_logits,
            temperature=temperature,
            method="draft_model",
            model=str(tmp_path),
        )
    )


@pytest.mark.parametrize("device", DEVICES)
def test_a_draft_model_that_is_the_target_drafts_what_the_target_draws(
    device: torch.device, target_folder: TargetFolder
) -> None:
    folder, peer = target_folder

    def next_logits(text: list[int], drafts: list[int]) -> torch.Tensor:
        logits: torch.Tensor = peer(input_ids=torch.tensor([text + drafts])).logits[0, -1]
        return logits

    serve(
        drafted_rows(
            device, folder, next_logits, temperature=0.0, method="draft_model", model=str(folder)
        )
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_checkpoints_own_head(device: torch.device, tmp_path: Path, temperature: float) -> None:
    """Greedy and drawn drafts, each after the first of the head's own output."""
    _, head = write_with_mtp(tmp_path, ["full_attention"] * 2)
    serve(drafted_rows(device, tmp_path, head, temperature=temperature, method="mtp"))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_that_are_layers_after_the_last(
    device: torch.device, tmp_path: Path, kind: str, temperature: float
) -> None:
    _, head = write_with_next_layers(kind, tmp_path)
    serve(drafted_rows(device, tmp_path, head, temperature=temperature, method="mtp"))


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["eagle", "eagle3", "draft_model"])
def test_a_graph_proposes_what_eager_steps_do(
    target_folder: TargetFolder, tmp_path: Path, method: str
) -> None:
    """The first replay and later ones, draft logits included."""
    folder, _ = target_folder
    if method == "eagle":
        write_eagle1(tmp_path, bias=False)
    elif method == "eagle3":
        write_eagle3(tmp_path, draft_ids=DRAFT_IDS)
    model = folder if method == "draft_model" else tmp_path
    device = torch.device("cuda")
    rows = drafted_rows(device, folder, None, temperature=0.7, method=method, model=str(model))
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
