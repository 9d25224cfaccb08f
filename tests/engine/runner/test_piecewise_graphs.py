"""A forward replayed in pieces is the eager one; its padding leaves no trace.

Replayed and eager layers differ in the order of sums at most, where a library takes another kernel
for the padded count: a few roundings a layer, of values no larger than the largest. `ROUNDINGS`
of them are allowed: each of the few layers rounds some ten sums anew, and errors grow no faster.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from demo import MODEL_FOLDER
from engine.attention.cuda import CudaAttention
from engine.config import Dtype, ModelConfig
from engine.contracts.attention import AttentionInputs, KVCache
from engine.models.fused.decoder import Decoder
from engine.models.loader import load_model
from engine.runner.forward import Forward, Hidden
from engine.runner.piecewise_graphs import PiecewiseGraphs, StepBuffers, token_ladder
from tests.engine.tiny_models import write_model

BLOCK_SIZE, NUM_BLOCKS, MAX_TOKENS = 16, 32, 100
LAYERS = (0, 1)
ROUNDINGS = 64


def test_the_ladder_wastes_little() -> None:
    for max_tokens in (1, 10, 32, 33, 100, 1150, 2048, 8192, 10_000):
        sizes = token_ladder(max_tokens)
        assert sizes[-1] == max_tokens
        assert list(sizes) == sorted(set(sizes))
        for tokens in range(32, max_tokens + 1):
            padded = min(size for size in sizes if size >= tokens)
            assert padded <= 1.5 * tokens
            assert tokens <= 1024 or padded <= 1.25 * tokens


class _Model:
    """A model with a cache, forwards over it eagerly and replayed."""

    def __init__(self, folder: Path, dtype: Dtype) -> None:
        config = ModelConfig(model=str(folder), dtype=dtype, device="cuda")
        model = load_model(config, torch.device("cuda"))
        assert isinstance(model, Decoder)
        self.vocab_size = model.vocab_size
        specs, device = model.attention_specs, model.device
        self.cache = KVCache(specs, NUM_BLOCKS, BLOCK_SIZE, model.dtype, device)
        self.attention = CudaAttention(specs, self.cache, max_rows=4)
        self.buffers = StepBuffers.of(model, MAX_TOKENS, len(LAYERS))
        graphs = PiecewiseGraphs(model, self.attention, LAYERS, self.buffers)
        graphs.capture(torch.cuda.graph_pool_handle())
        self.eager = Forward(model, self.attention, LAYERS)
        self.replayed = Forward(model, self.attention, LAYERS, graphs)

    @torch.inference_mode()
    def run(self, forward: Forward, num_tokens: int, first_block: int = 1) -> Hidden:
        """One row's prompt, in blocks of its own."""
        rng = np.random.default_rng(num_tokens)
        ids = torch.from_numpy(rng.integers(2, self.vocab_size, num_tokens)).int().cuda()
        count = -(-num_tokens // BLOCK_SIZE)
        tables = torch.arange(first_block, first_block + count, dtype=torch.int32).cuda()
        positions = torch.arange(num_tokens).cuda()
        starts, lens = (np.array(each, dtype=np.int32) for each in ([0, num_tokens], [num_tokens]))
        inputs = AttentionInputs(
            query_starts=torch.from_numpy(starts).cuda(),
            query_starts_np=starts,
            seq_lens=torch.from_numpy(lens).cuda(),
            block_tables=tables[None],
            slots=positions + first_block * BLOCK_SIZE,
            seq_lens_np=lens,
            max_query_len=num_tokens,
            decode_len=0,
        )
        hidden = forward(ids, positions, inputs)
        return Hidden(*(each.clone() for each in hidden if each is not None))


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Model:
    """float32 attends in plain torch, bfloat16 in FlashInfer."""
    if request.param == "bfloat16":
        return _Model(MODEL_FOLDER, request.param)
    folder = tmp_path_factory.mktemp("qwen3")
    write_model("qwen3", folder)
    return _Model(folder, request.param)


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 5, 31, 32, 33, 64, 65, 99, 100])
def test_replayed_is_eager(model: _Model, num_tokens: int) -> None:
    wanted, cells = model.run(model.eager, num_tokens), model.cache.layers
    kept = [layer[1:].clone() for layer in cells]
    for layer in cells:
        layer.zero_()
    got = model.run(model.replayed, num_tokens)
    pairs = [
        *zip(got, wanted, strict=True),
        *((a[1:], b) for a, b in zip(cells, kept, strict=True)),
    ]
    for ours, eager in pairs:
        assert ours is not None
        assert eager is not None
        unit = torch.finfo(eager.dtype).eps * eager.abs().max()
        assert (ours - eager).abs().max() <= ROUNDINGS * unit


@pytest.mark.gpu
def test_padding_writes_to_the_null_block_and_nothing_unusable(model: _Model) -> None:
    model.run(model.replayed, MAX_TOKENS)  # leaves its slots in the buffers
    before = [layer.clone() for layer in model.cache.layers]
    model.buffers.attended.fill_(torch.nan)
    hidden = model.run(model.replayed, 70, first_block=20)
    assert hidden.final.isfinite().all()
    for layer, old in zip(model.cache.layers, before, strict=True):
        assert layer[0].isfinite().all()
        assert torch.equal(layer[1:20], old[1:20])


@pytest.mark.gpu
def test_steps_beyond_the_ladder_run_eagerly(model: _Model) -> None:
    got, wanted = (model.run(f, MAX_TOKENS + 1) for f in (model.replayed, model.eager))
    assert torch.equal(got.final, wanted.final)
