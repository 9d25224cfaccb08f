"""Puts runners together: one that is measured, then the one that serves."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from engine.attention.cuda import CudaAttention
from engine.attention.invariant import InvariantPlainAttention
from engine.attention.plain import PlainAttention
from engine.batch import RequestRows
from engine.contracts.attention import AttentionBackend, AttentionSpec
from engine.contracts.model import CausalLM
from engine.errors import first_line
from engine.kernels.lora.groups import ActiveAdapters
from engine.memory.pages import FP8_CACHE, KVCache
from engine.memory.sleeping import SleepingMemory
from engine.memory.states import RowStates, StateSpec
from engine.runner.adapters import RunnerAdapters
from engine.runner.forward import Forward
from engine.runner.graphs.decode_graphs import DecodeGraphs
from engine.runner.graphs.fixed_states import FixedStates
from engine.runner.graphs.piecewise_graphs import PiecewiseGraphs, StepBuffers
from engine.runner.model_runner import ModelRunner
from engine.runner.speculation import Speculation, feature_layers_of
from engine.runner.step import TokenStage
from engine.speculation.cache import MakeAttention
from sampling.device.triton_support import kernels_run_on
from sampling.rows import SamplingRows
from sampling.sampler import Sampler

logger = logging.getLogger(__name__)


def make_attention(rows: RequestRows, *, invariant: bool = False) -> MakeAttention:
    """The function that makes attention on the rows' device, for the target and for a drafter.

    Args:
        invariant: a token's bits may not depend on what else a step computes.
    """
    if rows.device.type != "cuda" or not kernels_run_on(rows.device):
        return InvariantPlainAttention if invariant else PlainAttention
    # A draft model's first forward has the newest token beside those that were verified.
    max_decode_len = rows.drafts.shape[1] + 2 if rows.drafts.shape[1] else 1

    def on_cuda(specs: Sequence[AttentionSpec], cache: KVCache) -> AttentionBackend:
        if not specs:  # of a model in which no layer attends: there are no kernels to make ready
            return PlainAttention(specs, cache)
        most_keys = rows.block_tables.shape[1] * rows.block_size if invariant else None
        return CudaAttention(
            specs, cache, rows.scratch_row, max_decode_len, invariant_keys=most_keys
        )

    return on_cuda


def step_buffers(
    model: CausalLM, max_tokens: int, speculation: Speculation | None
) -> StepBuffers | None:
    """Allocate the buffers of the forward's graphs; None for a model that is not captured.

    Decode steps are captured of any model, with their rows as they are (`DecodeGraphs`).
    """
    if not model.is_capturable or model.device.type != "cuda" or not model.attention_specs:
        return None
    return StepBuffers.of(model, max_tokens, len(feature_layers_of(speculation)))


class LayerMemory(NamedTuple):
    """What a model's layers keep of rows.

    Attributes:
        states: None where none keeps a state.
        tensors: of all of it, of the drafter's and of the routes of tokens.
    """

    pages: KVCache
    states: RowStates | None
    tensors: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Assembly:
    """Everything a runner is made of but its cache.

    Attributes:
        buffers: for the graphs of steps that prefill, made before memory is measured; None where
            they are not captured.
        kv_scales: `KVCache.scales` of the model's cache; a drafter's stays in the model's dtype.
        invariant: see `ModelConfig.batch_invariant`.
        adapters: that rows may have; None where none are served.
    """

    model: CausalLM
    rows: RequestRows
    sampling_rows: SamplingRows
    sampler: Sampler
    speculation: Speculation | None
    device: torch.device
    buffers: StepBuffers | None
    kv_scales: Sequence[torch.Tensor] | None = None
    invariant: bool = False
    adapters: RunnerAdapters | None = None

    @property
    def bytes_per_block(self) -> int:
        """Bytes a block takes in all layers, the drafter's included."""
        block_size, dtype = self.rows.block_size, self.model.dtype
        stored = dtype if self.kv_scales is None else FP8_CACHE
        num_bytes = KVCache.bytes_per_block(self.model.attention_specs, block_size, stored)
        if self.speculation is not None:
            specs = self.speculation.drafter.attention_specs
            num_bytes += KVCache.bytes_per_block(specs, block_size, dtype)
        if self.model.routes is not None:
            num_bytes += self.model.routes.bytes_per_block(block_size)
        return num_bytes

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """What the model's layers keep of a row."""
        return self.model.state_specs(self.rows.drafts.shape[1])

    def memory(self, num_blocks: int, num_snapshots: int = 0) -> LayerMemory:
        """Allocate what the model's layers keep, and let the drafter allocate its own."""
        model, block_size = self.model, self.rows.block_size
        tensors: list[torch.Tensor] = []
        if self.speculation is not None:
            tensors += self.speculation.drafter.allocate(num_blocks)
        if model.routes is not None:
            model.routes.allocate(num_blocks, block_size, self.device)
            tensors += model.routes.tensors
        specs, scales = model.attention_specs, self.kv_scales
        pages = KVCache(specs, num_blocks, block_size, model.dtype, self.device, scales)
        tensors += pages.layers
        if not self.state_specs:
            return LayerMemory(pages, None, tensors)
        states = RowStates(self.state_specs, self.rows.scratch_row, num_snapshots, self.device)
        return LayerMemory(pages, states, [*tensors, *itertools.chain(*states.layers)])

    def runner(
        self, kept: LayerMemory, *, with_graphs: bool, memory: SleepingMemory | None = None
    ) -> ModelRunner:
        """Make a runner over what layers keep.

        Args:
            with_graphs: capture its steps where that is possible.
            memory: in which weights and `kept` are; None where it is never given back.
        """
        attention = make_attention(self.rows, invariant=self.invariant)(
            self.model.attention_specs, kept.pages
        )
        pieces, graphs = None, None
        if with_graphs and isinstance(attention, CudaAttention):
            pool = torch.cuda.graph_pool_handle()
            pieces = self._pieces(attention, pool, kept.states)
            graphs = self._graphs(attention, pool, kept.states)
        active = None if self.adapters is None else self.adapters.active
        return ModelRunner(
            Forward(self.model, attention, self.feature_layers, pieces, active),
            self._stage,
            self.rows,
            self.sampling_rows,
            graphs,
            kept.states,
            self.adapters,
            memory,
        )

    @property
    def _stage(self) -> TokenStage:
        active = ActiveAdapters() if self.adapters is None else self.adapters.active
        return TokenStage(self.model, self.sampler, self.speculation, active)

    @property
    def feature_layers(self) -> Sequence[int]:
        """The model's layers whose outputs the drafter reads."""
        return feature_layers_of(self.speculation)

    def _pieces(
        self, attention: CudaAttention, pool: Any, states: RowStates | None
    ) -> PiecewiseGraphs | None:
        if self.buffers is None:
            return None
        fixed = None
        if states is not None:
            decode_len = 1 + self.rows.drafts.shape[1]
            fixed = FixedStates(states.layers, decode_len, self.device)
        graphs = PiecewiseGraphs(
            self.model, attention, self.feature_layers, self.buffers, self.adapters, fixed
        )
        graphs.capture(pool)
        return graphs

    def _graphs(
        self, attention: AttentionBackend, pool: Any, states: RowStates | None = None
    ) -> DecodeGraphs | None:
        graphs = DecodeGraphs(
            self._stage, attention, self.rows, self.sampling_rows, states, self.adapters
        )
        try:
            graphs.capture(pool)
        except RuntimeError as error:  # modelling code that looks at values on the host
            if not self.sampling_rows.shard.is_whole:
                raise  # the other ranks would replay graphs, which exchange padded steps
            logger.warning("decode steps run without CUDA graphs: %s", first_line(error))
            return None
        return graphs
