"""A model whose steps run eagerly and from graphs, to be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers as hf
from transformers import PreTrainedConfig

from engine.attention.cuda import CudaAttention
from engine.config import Dtype, ModelConfig
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import Hidden
from engine.memory.pages import KVCache
from engine.memory.states import NEVER, RowStates, StepStates
from engine.models.decoder import Decoder
from engine.models.loader import load_model
from engine.runner.forward import Forward
from engine.runner.graphs.fixed_states import FixedStates
from engine.runner.graphs.piecewise_graphs import PiecewiseGraphs, StepBuffers
from engine.runner.step_states import step_states
from tests.engine.models.families.cuda_models import FAMILIES as ON_GPU
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.models.serving import write_tiny
from tests.engine.models.small_models import GEMMA4 as SMALL_GEMMA4
from tests.engine.models.small_models import GEMMA4_SHARED
from tests.engine.tiny_models import write_model

BLOCK_SIZE, NUM_BLOCKS, MAX_TOKENS, MAX_ROWS = 16, 32, 100, 25
Rows = list[tuple[int, int]]
"""(tokens in the cache, tokens it brings) of each row of a step."""
LAYERS = (0, 1)
GEMMA4: dict[str, PreTrainedConfig] = {}
if "gemma4" in ON_GPU:  # transformers 5.0 has none
    GEMMA4["gemma4"] = ON_GPU["gemma4"]
    heads = {"head_dim": 16, "global_head_dim": 32}
    GEMMA4["gemma4-shared"] = hf.Gemma4TextConfig(**SMALL_GEMMA4 | GEMMA4_SHARED | heads)
"""Heads of two sizes; with experts beside the MLP, or with layers that read an earlier's keys."""
HYBRIDS, HIDDEN = ("qwen3_5", "lfm2", "nemotron_h"), 64
"""Whose layers keep states, and their width; heads are then a quarter and half as wide."""
ROUNDINGS = 64
"""Allowed of a number, in units of the largest: each of the few layers rounds some ten sums anew,
and errors grow no faster."""


def write(kind: str, folder: Path) -> None:
    """Save a tiny random model of a kind."""
    if kind in HYBRIDS:
        write_hybrid(config_of(kind, HIDDEN), folder)
    elif kind in GEMMA4:
        write_tiny(GEMMA4[kind], folder)
    else:
        write_model(kind, folder)


class Model:
    """A model with a cache, forwards over it eagerly and replayed.

    Args:
        max_tokens: of a step that is replayed.
    """

    def __init__(
        self, folder: Path, dtype: Dtype, device: Literal["cpu", "cuda"], max_tokens: int
    ) -> None:
        self.device = torch.device(device)
        model = load_model(ModelConfig(model=str(folder), dtype=dtype, device=device), self.device)
        assert isinstance(model, Decoder)
        self.model = model
        specs = model.attention_specs
        self.cache = KVCache(specs, NUM_BLOCKS, BLOCK_SIZE, model.dtype, self.device)
        self.attention = CudaAttention(specs, self.cache, max_rows=4)
        self.states, self.replays = None, list[bool]()
        if state_specs := model.state_specs(0):
            self.states = RowStates(state_specs, MAX_ROWS, 1, self.device)
        self.buffers = StepBuffers.of(model, max_tokens, len(LAYERS))
        self.eager = Forward(model, self.attention, LAYERS)
        self.replayed = self.captured()

    def captured(self) -> Forward:
        """A forward that replays graphs."""
        fixed = None
        if self.states is not None:
            fixed = FixedStates(self.states.layers, 1, self.device)
        graphs = PiecewiseGraphs(self.model, self.attention, LAYERS, self.buffers, states=fixed)
        graphs.capture(torch.cuda.graph_pool_handle())
        return Forward(self.model, self.attention, LAYERS, graphs)

    def forget(self) -> None:
        """Fill what layers keep with what no step wrote, the same each time."""
        for each in self.kept():
            each.copy_(torch.randn(each.shape, generator=torch.Generator().manual_seed(0)))

    def kept(self) -> list[torch.Tensor]:
        """What layers keep, but for what padding may write."""
        states = [] if self.states is None else self.states.layers
        return [
            *(layer[1:] for layer in self.cache.layers),
            *(tensor[1:] for layer in states for tensor in layer if len(tensor)),
        ]

    @torch.inference_mode()
    def run(
        self, forward: Forward, rows: Rows, first_block: int = 1, num_decodes: int = 0
    ) -> Hidden:
        """A step of rows that prefill, after some that decode, in blocks of their own."""
        befores, counts = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
        ends, starts_np = befores + counts, np.cumsum([0, *counts], dtype=np.int32)
        num_blocks = -(-ends // BLOCK_SIZE)
        tables = np.zeros((len(rows), num_blocks.max()), dtype=np.int32)
        positions = np.concatenate([np.arange(*span) for span in zip(befores, ends, strict=True)])
        slots, begin = np.zeros_like(positions), first_block
        for row, count in enumerate(num_blocks):
            tables[row, :count] = np.arange(begin, begin + count)
            own = slice(starts_np[row], starts_np[row + 1])
            slots[own] = begin * BLOCK_SIZE + positions[own]
            begin += count
        assert begin <= NUM_BLOCKS
        rng = np.random.default_rng(len(positions))
        ids = rng.integers(2, self.model.vocab_size, len(positions)).astype(np.int32)

        def there(array: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
            return torch.from_numpy(array).to(self.device)

        inputs = AttentionInputs(
            query_starts=there(starts_np),
            query_starts_np=starts_np,
            seq_lens=there(ends),
            block_tables=there(tables),
            slots=there(slots),
            seq_lens_np=ends,
            max_query_len=int(counts.max()),
            decode_len=int(num_decodes > 0),
        )
        states = self._states(befores, ends, there(positions), inputs, num_decodes)
        hidden = forward(there(ids), there(positions), inputs, states)
        return Hidden(*(each.clone() for each in hidden if each is not None))

    def _states(
        self,
        befores: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int32],
        positions: torch.Tensor,
        inputs: AttentionInputs,
        num_decodes: int,
    ) -> StepStates | None:
        """The step's states, of which the first row's is copied at its end."""
        if self.states is None:
            return None
        table, rows = self.states.table, torch.arange(len(befores), device=self.device)
        table.sources[rows] = table.slots[rows]
        table.entered[rows] = torch.from_numpy(befores).to(self.device, torch.int64)
        table.snapshot_ends.fill_(NEVER)
        table.snapshot_ends[0, 0] = int(ends[0])
        table.snapshot_slots[0, 0] = MAX_ROWS + 2
        starts, starts_np = inputs.query_starts, inputs.query_starts_np
        return step_states(self.states, rows, positions, starts, starts_np, num_decodes)

    def check(self, rows: Rows, num_decodes: int = 0) -> None:
        """Compare a step that is replayed with the eager one, and what both store."""
        self.forget()
        wanted = self.run(self.eager, rows, num_decodes=num_decodes)
        kept = [each.clone() for each in self.kept()]
        self.forget()
        with pytest.MonkeyPatch.context() as patch:
            self.replays = noted_replays(patch)
            got = self.run(self.replayed, rows, num_decodes=num_decodes)
        pairs = [*zip(got, wanted, strict=True), *zip(self.kept(), kept, strict=True)]
        for ours, eager in pairs:
            assert ours is not None
            assert eager is not None
            unit = torch.finfo(eager.dtype).eps * eager.abs().max()
            assert (ours - eager).abs().max() <= ROUNDINGS * unit


def noted_replays(patch: pytest.MonkeyPatch) -> list[bool]:
    """A list of whether each step that asks is replayed."""
    noted, serves = list[bool](), PiecewiseGraphs.serves

    def asked(self: PiecewiseGraphs, num_tokens: int, states: StepStates | None) -> bool:
        noted.append(serves(self, num_tokens, states))
        return noted[-1]

    patch.setattr(PiecewiseGraphs, "serves", asked)
    return noted
