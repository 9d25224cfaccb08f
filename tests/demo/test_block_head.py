"""The block head in training is what the engine serves, and what single blocks compute."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.block_head import (
    BLOCK_TOKENS,
    TrainableBlockHead,
    block_config,
    load_block_head,
    save_block_head,
)
from engine.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.speculation.make_drafter import make_drafter
from engine.speculative_config import SpeculativeConfig
from tests.engine.speculation.drafted_rows import DraftedRows, Row, make_attention, make_rows

NUM_DRAFTS = BLOCK_TOKENS - 1


@pytest.fixture
def head() -> TrainableBlockHead:
    torch.manual_seed(0)
    return TrainableBlockHead(block_config()).eval()


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32).eval()


@torch.inference_mode()
def test_outputs_are_those_of_blocks_by_themselves(
    head: TrainableBlockHead, target: LlamaForCausalLM
) -> None:
    """The token at n is drafted, j after its step's first, by the block from n - 1 - j on."""
    ids = torch.randint(1, 8000, (1, 14), generator=torch.Generator().manual_seed(1))
    states = target.model(ids, use_cache=False, output_hidden_states=True).hidden_states
    outputs = head.outputs(target, ids, states, 3)
    assert [output.shape for output in outputs] == [(1, 12, 256)] * 3
    for anchor in range(1, 12):
        known = [state[:, :anchor] for state in states]
        embedding = target.model.embed_tokens(ids[:, anchor : anchor + 1])
        block = head(known, embedding, torch.tensor([[anchor]]))[0, 0]
        for j in range(min(3, 12 - anchor)):
            own = outputs[j][0, anchor + 1 + j - 2]
            torch.testing.assert_close(own, block[j + 1], rtol=1e-4, atol=1e-4)


def test_a_saved_head_loads(head: TrainableBlockHead, tmp_path: Path) -> None:
    save_block_head(head, tmp_path)
    loaded = load_block_head(tmp_path)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, head.get_parameter(name).bfloat16().float()), name


@torch.inference_mode()
def test_the_engine_drafts_what_training_computes(
    head: TrainableBlockHead, target: LlamaForCausalLM, tmp_path: Path
) -> None:
    save_block_head(head, tmp_path)
    head = load_block_head(tmp_path).eval()

    def next_logits(text: list[int], drafts: list[int]) -> torch.Tensor:
        ids = torch.tensor([text])
        made = target.model(ids[:, :-1], use_cache=False, output_hidden_states=True)
        anchor = torch.tensor([[len(text) - 1]])
        block = head(made.hidden_states, target.model.embed_tokens(ids[:, -1:]), anchor)
        logits: torch.Tensor = target.lm_head(block[0, 0, 1 + len(drafts)])
        return logits

    config = ModelConfig(model=str(MODEL_FOLDER), dtype="float32", max_model_len=96)
    served = load_model(config, torch.device("cpu"))
    assert isinstance(served, Decoder)
    rows, sampling = make_rows(served.vocab_size, 0.0, torch.device("cpu"))
    speculation = SpeculativeConfig(
        method="dflash", model=str(tmp_path), num_speculative_tokens=NUM_DRAFTS
    )
    drafter = make_drafter(speculation, config, served, rows, sampling, make_attention)
    texts = [Row([7 * i + 300 for i in range(length)], limit=90) for length in (19, 4)]
    steps = DraftedRows(served, drafter, sampling, texts, next_logits)
    for queries in ({0: 11}, {0: 8, 1: 4}, {0: 2, 1: 0}, {0: NUM_DRAFTS, 1: 3}, {0: 0}):
        steps.step(queries)
    assert steps.num_checked == 7 * NUM_DRAFTS
