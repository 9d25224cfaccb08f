"""Routed experts: what each token took, however its keys came to be in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.errors import ModelError
from engine.memory.routes import ExpertRoutes
from engine.messages.request import RoutesParams
from engine.messages.step_output import ChoiceRoutes, Finish
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import build_engine
from sampling.params import SamplingParams
from tests.engine.tiny_models import VOCAB, write_model
from tests.engine.traffic import FRONTEND, Inbox, request, run, step

BLOCK_SIZE = 4
WEIGHT_ERROR = 1e-4
"""What float32 probabilities may differ by whose logits come of sums in another order."""
GREEDY = SamplingParams(temperature=0.0)
ALL = RoutesParams(has_weights=True)


def build(folder: Path, **fields: Any) -> Engine:
    model = {"dtype": "float32", "device": "cpu", "max_model_len": 76, "returns_routes": True}
    config = EngineConfig(
        model=ModelConfig(model=str(folder), **(model | fields.pop("model", {}))),
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=fields.pop("num_blocks", 80)),
        scheduler=SchedulerConfig(max_rows=4, max_step_tokens=16),
        **fields,
    )
    return build_engine(config)


class Reference:
    """What transformers' router takes of a whole text at once, in float64."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._inputs: list[torch.Tensor] = []
        for layer in self._model.model.layers:
            layer.mlp.register_forward_pre_hook(lambda _, args: self._inputs.append(args[0]))

    @torch.inference_mode()
    def check(self, text: list[int], routes: ChoiceRoutes) -> None:
        """Assert that routes are those of a text's tokens from their start on, but the last."""
        self._inputs.clear()
        self._model(input_ids=torch.tensor([text]), use_cache=False)
        config = self._model.config
        top_k, layers = config.num_experts_per_tok, self._model.model.layers
        assert routes.weights is not None
        count = len(text) - 1 - routes.start
        assert routes.ids.shape == routes.weights.shape == (count, len(layers), top_k)
        for index, (layer, x) in enumerate(zip(layers, self._inputs, strict=True)):
            logits = x[0, routes.start : -1].double() @ layer.mlp.gate.weight.double().t()
            probs = logits.softmax(-1)
            ids = torch.from_numpy(routes.ids[:, index].astype(np.int64))
            wanted, order = probs.sort(-1, descending=True)
            taken = probs.gather(1, ids)
            assert (taken - wanted[:, :top_k]).abs().max() < WEIGHT_ERROR
            far = (wanted[:, :top_k] - wanted[:, 1 : top_k + 1]).min(-1).values > WEIGHT_ERROR
            assert far.float().mean() > 0.9, "the ids of nearly all tokens are reported apart"
            assert torch.equal(ids[far], order[far, :top_k])
            shares = taken / taken.sum(-1, keepdim=True)
            found = torch.from_numpy(routes.weights[:, index]).double()
            assert (found - shares).abs().max() < WEIGHT_ERROR


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("routes") / "model"
    write_model("qwen3_moe", folder)
    return folder


def prompt_of(length: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(2, VOCAB, length).tolist()
    return ids


def check_all(inbox: Inbox, prompts: dict[int, list[int]], reference: Reference) -> None:
    assert inbox.routes.keys() == inbox.finish.keys()
    for (handle, choice), routes in inbox.routes.items():
        reference.check(prompts[handle] + inbox.tokens[handle, choice], routes)


@pytest.mark.parametrize("num_blocks", [80, 20])
@pytest.mark.parametrize("drafts", [0, 2])
def test_routes_are_those_of_the_whole_text(drafts: int, num_blocks: int, folder: Path) -> None:
    """Prompts in chunks, found in the cache, shared by choices, preempted, with drafts."""
    speculation = None
    if drafts:
        speculation = SpeculativeConfig(method="ngram", num_speculative_tokens=drafts)
    engine = build(folder, speculation=speculation, num_blocks=num_blocks)
    common, inbox, prompts = prompt_of(21), Inbox(), dict[int, list[int]]()
    for handle in range(6):
        prompts[handle] = common + prompt_of(4 + 3 * handle, handle + 1)
        wish = {"n": 1 + (handle == 2), "max_tokens": 24, "params": GREEDY, "routes": ALL}
        engine.submit(FRONTEND, request(handle, prompts[handle], **wish))
        step(engine, inbox, 2)
    run(engine, inbox)
    assert max(inbox.cached.values()) >= 2 * BLOCK_SIZE
    assert (engine.stats().num_preemptions > 0) == (num_blocks == 20)
    check_all(inbox, prompts, Reference(folder))


def test_some_tokens_are_asked_for_and_others_ask_for_nothing(folder: Path) -> None:
    engine, inbox, prompt = build(folder), Inbox(), prompt_of(18)
    late = RoutesParams(start=11, has_weights=True)
    for handle, routes in enumerate((late, None, RoutesParams(start=18))):
        wish = {"max_tokens": 5, "params": GREEDY, "routes": routes}
        engine.submit(FRONTEND, request(handle, prompt, **wish))
    run(engine, inbox)
    assert inbox.routes.keys() == {(0, 0), (2, 0)}
    Reference(folder).check(prompt + inbox.tokens[0, 0], inbox.routes[0, 0])
    only_ids = inbox.routes[2, 0]
    assert only_ids.weights is None
    assert len(only_ids.ids) == 4


def test_a_choice_that_is_aborted_reports_what_it_had(folder: Path) -> None:
    engine, inbox, prompt = build(folder), Inbox(), prompt_of(18)
    wish = {"max_tokens": 50, "params": GREEDY, "routes": ALL, "name": "one"}
    engine.submit(FRONTEND, request(0, prompt, **wish))
    step(engine, inbox, 9)
    engine.held.abort_named(("one",))
    run(engine, inbox)
    assert inbox.finish[0, 0] == Finish.CANCELED
    tokens = inbox.tokens[0, 0]
    assert 0 < len(tokens) < 50
    Reference(folder).check(prompt + tokens, inbox.routes[0, 0])


def test_bits_under_batch_invariance_are_those_of_whole_blocks(folder: Path) -> None:
    engine, inbox, prompt = build(folder, model={"batch_invariant": True}), Inbox(), prompt_of(30)
    wish = {"max_tokens": 5, "params": GREEDY, "routes": ALL}
    engine.submit(FRONTEND, request(0, prompt, **wish))
    run(engine, inbox)
    Reference(folder).check(prompt + inbox.tokens[0, 0], inbox.routes[0, 0])


def test_layers_without_experts_have_zeros(tmp_path: Path) -> None:
    write_model("deepseek_v2", tmp_path)
    engine, inbox = build(tmp_path), Inbox()
    wish = {"max_tokens": 3, "params": GREEDY, "routes": ALL}
    engine.submit(FRONTEND, request(0, prompt_of(7), **wish))
    run(engine, inbox)
    routes = inbox.routes[0, 0]
    assert routes.weights is not None
    assert not routes.ids[:, 0].any()
    assert not routes.weights[:, 0].any()
    assert (routes.weights[:, 1] > 0).all()
    assert all(len(set(row)) == 3 for row in routes.ids[:, 1].tolist())


def test_ids_are_as_wide_as_there_are_experts() -> None:
    routes = ExpertRoutes(1)
    note = routes.of_layer(0, 300, 1)
    routes.allocate(2, 2, torch.device("cpu"))
    slots = torch.tensor([3, 1])
    with routes.at(slots):
        note(torch.tensor([[299], [7]], dtype=torch.int32), torch.tensor([[0.5], [0.25]]))
    note(torch.tensor([[1], [2]], dtype=torch.int32), torch.tensor([[1.0], [1.0]]))
    read = routes.read(torch.tensor([1, 3]))
    ids, weights = routes.laid_out(read["ids"].numpy(), read["weights"].numpy())
    assert ids.dtype == np.int16
    assert ids.tolist() == [[[7]], [[299]]]
    assert weights.tolist() == [[[0.25]], [[0.5]]]
    assert routes.bytes_per_block(2) == sum(each.nbytes for each in routes.tensors) // 2


@pytest.mark.parametrize(
    ("kind", "model", "words"),
    [("qwen3", {}, "has no experts"), ("qwen3_moe", {"model_impl": "transformers"}, "fused")],
)
def test_a_model_that_has_none_is_refused(
    kind: str, model: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_model(kind, tmp_path)
    with pytest.raises(ModelError, match=rf"--enable-return-routed-experts.*{words}"):
        build(tmp_path, model=model)
