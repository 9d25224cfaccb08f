"""Adapters that PEFT itself makes, merges nothing of, and saves; its own logits are the reference.

Float32 throughout. PEFT multiplies by B and A apart, as we do; sums differ in order alone.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine.config import (
    AdaptersConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.messages.request import PromptLogprobsParams
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.adapters.peft import linear_modules, stacked_modules
from tests.engine.models.families.hybrid_models import FAMILIES, config_of, write_hybrid
from tests.engine.tiny_models import FUSED, write_model
from tests.engine.traffic import FRONTEND, Inbox, request, run, step

peft = pytest.importorskip("peft")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # it has its own

RANKS = (1, 8, 64, 128)
"""PEFT doubles those of gate and up where it joins them, up to the largest that is served."""
NUM_TOKENS = 7
GREEDY = SamplingParams(temperature=0.0, logprobs=0)
MAMBA = ("nemotron_h", "falcon_h1")
ROUTERS = ("router", ".gate", "shared_expert_gate")


def write_base(family: str, folder: Path) -> PreTrainedModel:
    if family in FUSED:
        return write_model(family, folder)
    model: PreTrainedModel = write_hybrid(config_of(family), folder)
    return model


def adapted(model: PreTrainedModel, folder: Path, rank: int, seed: int) -> Any:
    """PEFT's model of a base with a random adapter of all that can be adapted, which is saved."""
    torch.manual_seed(seed)
    base = copy.deepcopy(model)
    modules = [
        name
        for name in linear_modules(base)
        if not name.endswith(ROUTERS)
        and ".experts." not in name
        # PEFT refuses what kernels of Mamba fuse
        and not (name.endswith("out_proj") and base.config.model_type in MAMBA)
    ]
    parameters = [
        f"{name}.{parameter}"
        for name, (_, own) in stacked_modules(base).items()
        for parameter in own
    ]
    embeddings = base.get_input_embeddings()
    embedding = next(name for name, each in base.named_modules() if each is embeddings)
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=[*modules, embedding, "lm_head"],
        target_parameters=parameters or None,
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    wrapped = peft.get_peft_model(base, config)
    with torch.no_grad():  # PEFT's own random start makes deltas as large as weights
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=parameter.shape[-1] ** -0.5 * 0.5)
    wrapped.save_pretrained(folder)
    return wrapped.eval()


class References:
    """The base and PEFT's models, by the adapter's name."""

    def __init__(self, family: str, folder: Path) -> None:
        self.folder = folder
        base = write_base(family, folder / "base")
        self.vocab: int = base.config.vocab_size
        self.models: dict[str, Any] = {"": base}
        for seed, rank in enumerate(RANKS):
            name = f"r{rank}"
            self.models[name] = adapted(base, folder / name, rank, seed)

    @torch.inference_mode()
    def logprobs(self, name: str, ids: list[int]) -> torch.Tensor:
        logits: torch.Tensor = self.models[name](torch.tensor([ids]), use_cache=False).logits[0]
        return logits.log_softmax(-1)

    def engine(self, **fields: Any) -> Any:
        modules = tuple((name, str(self.folder / name)) for name in self.models if name)
        return build_engine(
            EngineConfig(
                model=ModelConfig(model=str(self.folder / "base"), device="cpu"),
                cache=CacheConfig(block_size=4, num_blocks=60),
                scheduler=SchedulerConfig(max_rows=5, max_step_tokens=16),
                adapters=AdaptersConfig(max_loras=3, max_rank=256, modules=modules),
                **fields,
            )
        )


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("family", [*FUSED, *FAMILIES])
def test_values_are_those_of_peft(family: str, drafts: bool, tmp_path: Path) -> None:
    """Every rank and none in one engine, in chunks, from cached prefixes, and verified."""
    references = References(family, tmp_path)
    speculation = SpeculativeConfig(method="ngram", num_speculative_tokens=2) if drafts else None
    engine, inbox = references.engine(speculation=speculation), Inbox()
    generator = torch.Generator().manual_seed(3)
    shared = torch.randint(2, references.vocab, (11,), generator=generator).tolist()
    asked: list[tuple[str, list[int]]] = []
    for turn in range(2):  # the second finds what the first has computed
        for index, name in enumerate(references.models):
            asked.append((name, [*shared, 2 + index, *shared[: 2 + turn]]))
    for handle, (name, prompt) in enumerate(asked):
        wanted = PromptLogprobsParams(token_ids=(3,)) if handle % 2 else None
        own: dict[str, Any] = {"params": GREEDY, "max_tokens": NUM_TOKENS, "adapter": name}
        engine.submit(FRONTEND, request(handle, prompt, prompt_logprobs=wanted, **own))
        step(engine, inbox, handle % 3)
    run(engine, inbox)
    for handle, (name, prompt) in enumerate(asked):
        tokens = inbox.tokens[handle, 0]
        values = references.logprobs(name, [*prompt, *tokens])
        own_values = values[len(prompt) - 1 : -1]
        assert tokens == own_values.argmax(-1).tolist(), (name, handle)
        if handle % 2:
            of_prompt = torch.from_numpy(inbox.prompt_logprobs[handle].logprobs.explicit[:, 0])
            torch.testing.assert_close(of_prompt, values[: len(prompt) - 1, 3], rtol=0, atol=1e-4)
