"""Weights on a GPU written by name: captured graphs read the new ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers as hf

from engine.models.decoder import Decoder
from tests.engine.models.formats.gpt_oss import write_gpt_oss
from tests.engine.models.formats.kinds import EVEN, KINDS
from tests.engine.models.formats.packers import write_quantized, write_quantized_experts
from tests.engine.models.rewriting import (
    assert_holds,
    stored_tensors,
    text_logits,
    write_in_pieces,
    write_other,
)
from tests.engine.models.serving import load, write_tiny

pytestmark = pytest.mark.gpu
GROUPED = {**EVEN, "num_key_value_heads": 2}
DENSE = hf.Qwen3Config(**GROUPED, head_dim=32)
EXPERTS = hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2)


def quantized(kind: str, *, experts: bool = False) -> Callable[[Path], object]:
    config, module = KINDS[kind]
    if not experts:
        return lambda folder: write_quantized(folder, config, module, EVEN)
    config = config | {"modules_to_not_convert": ["gate"]}
    return lambda folder: write_quantized_experts(folder, EXPERTS, config, module)


CHECKPOINTS: dict[str, tuple[Callable[[Path], object], dict[str, Any]]] = {
    "float32": (lambda folder: write_tiny(DENSE, folder), {"dtype": "float32"}),
    "bfloat16": (lambda folder: write_tiny(DENSE, folder), {"dtype": "bfloat16"}),
    "invariant": (
        lambda folder: write_tiny(DENSE, folder),
        {"dtype": "bfloat16", "batch_invariant": True},
    ),
    "experts": (lambda folder: write_tiny(EXPERTS, folder), {"dtype": "bfloat16"}),
    "fp8 at load": (
        lambda folder: write_tiny(DENSE, folder),
        {"dtype": "bfloat16", "quantization": "fp8"},
    ),
    **{kind: (quantized(kind), {"dtype": "bfloat16"}) for kind in KINDS},
    "awq experts": (quantized("awq", experts=True), {"dtype": "bfloat16"}),
    "mxfp4": (write_gpt_oss, {"dtype": "bfloat16"}),
}


class CapturedMlp:
    """The MLP or experts of a model's first layer, in a graph for so many tokens."""

    def __init__(self, model: Decoder, num_tokens: int) -> None:
        sublayer = cast(Any, model._layers[0][1])
        generator = torch.Generator("cuda").manual_seed(num_tokens)
        shape = (2, num_tokens, model.hidden_size)
        x, residual = torch.randn(shape, generator=generator, device="cuda").to(model.dtype)
        self._inputs = x, residual  # replays read them

        def run() -> torch.Tensor:
            out: torch.Tensor = sublayer((x.clone(), residual.clone()), None)[0]
            return out

        stream: Any = cast(Any, torch.cuda).Stream()
        with torch.inference_mode(), torch.cuda.stream(stream):
            run()
            stream.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):
                self._out = run()

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        torch.cuda.synchronize()
        return self._out.clone()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_graphs_read_what_was_written(name: str, tmp_path: Path) -> None:
    """Of one token and of several, whose kernels differ; and the logits of a text."""
    write, settings = CHECKPOINTS[name]
    write(tmp_path / "old")
    new = write_other(tmp_path / "old", tmp_path / "new")
    model = load(tmp_path / "old", on="cuda", **settings)
    fresh = load(tmp_path / "new", on="cuda", **settings)
    assert isinstance(model, Decoder)
    assert isinstance(fresh, Decoder)
    if settings == {"dtype": "float32"}:
        assert_holds(model.named_weights(), stored_tensors(tmp_path / "old"))
    graphs = [CapturedMlp(model, count) for count in (1, 7)]
    wanted = [CapturedMlp(fresh, count).replay() for count in (1, 7)]
    assert not any(torch.equal(a.replay(), b) for a, b in zip(graphs, wanted, strict=True))
    write_in_pieces(model.named_weights(), new)
    for graph, own in zip(graphs, wanted, strict=True):
        assert torch.equal(graph.replay(), own)
    assert torch.equal(text_logits(model), text_logits(fresh))
