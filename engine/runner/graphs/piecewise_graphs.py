"""Captures the layers of prefill and mixed steps as CUDA graphs, cut where they attend.

What a step's attention does depends on its rows, everything else in a layer on the number of its
tokens alone. So the layers are captured for a ladder of token counts, in pieces: one from the
embedding to the first layer's queries, one from each attention's output to the next queries, one
from the last to the final norm. Between two pieces the attention of the step's own rows runs
eagerly. A step is padded to a captured count with tokens whose keys go to the null block.
Recurrences depend on rows too; they are in the pieces, over rows at fixed addresses
(`fixed_states`), for steps of few rows.
Short steps of prompts alone have a graph of all layers besides (`whole_graphs`).

Eagerly, a layer's ten launches cost the host up to half a millisecond, which is longer than a
GPU needs for thousands of tokens of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from engine.arrays import Int32Array
from engine.attention.cuda import CudaAttention
from engine.contracts.heads import Heads, Rotation
from engine.contracts.model import CausalLM, Hidden, ModelInputs
from engine.kernels.lora.groups import ActiveAdapters
from engine.kernels.rope import rope_and_store
from engine.memory.pages import Cells
from engine.memory.states import StepStates
from engine.progress import report
from engine.runner.adapters import FixedGroups, RunnerAdapters
from engine.runner.forward import forward
from engine.runner.graphs.capturing import capturing_stream
from engine.runner.graphs.fixed_states import FixedStates
from engine.runner.graphs.whole_graphs import WholeGraphs

CAPTURED_PRODUCTS = 8 << 40
"""Largest product of tokens and weights for which a step is worth a graph. At 600 TFLOP/s such a
step's matrix products take 29 ms; the launches of an eager step of 28 to 36 layers take 14 to
30 ms, depending on the host."""
SMALLEST = 32
"""Smallest captured number of tokens; steps of fewer take as long."""


def token_ladder(max_tokens: int) -> tuple[int, ...]:
    """The captured numbers of tokens up to max_tokens, each at most 1.5 times the one before."""
    sizes = [SMALLEST]
    while sizes[-1] < max_tokens:
        # Two counts to a doubling while a step is short, four where padding costs milliseconds.
        octave = 1 << (sizes[-1].bit_length() - 1)
        sizes.append(sizes[-1] + octave // (2 if octave < 1024 else 4))
    return (*(size for size in sizes if size < max_tokens), max_tokens)


@dataclass(frozen=True)
class StepBuffers:
    """The tensors through which pieces and attention hand values on, for T tokens at most.

    Attributes:
        input_ids: int32 [T]. positions, slots: int64 [T].
        queries, attended: [T, num_q_heads, head_dim] by layers' places; layers whose heads are
            alike have the same tensor, one after another.
        hidden: of the whole step.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    queries: Sequence[torch.Tensor]
    attended: Sequence[torch.Tensor]
    hidden: Hidden

    @classmethod
    def of(cls, model: CausalLM, max_tokens: int, num_features: int) -> StepBuffers:
        """Allocate for steps of up to max_tokens, or of as many as are worth a graph."""
        worth = max(CAPTURED_PRODUCTS // model.num_weights, SMALLEST)
        num_tokens, device = min(max_tokens, worth), model.device
        shapes = [(spec.num_q_heads, spec.head_dim) for spec in model.attention_specs]

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros((num_tokens, *shape), dtype=model.dtype, device=device)

        def indices(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(num_tokens, dtype=dtype, device=device)

        queries, attended = ({shape: floats(*shape) for shape in shapes} for _ in range(2))
        return cls(
            input_ids=indices(torch.int32),
            positions=indices(torch.int64),
            slots=indices(torch.int64),
            queries=[queries[shape] for shape in shapes],
            attended=[attended[shape] for shape in shapes],
            hidden=Hidden(
                final=floats(model.hidden_size),
                features=floats(num_features * model.hidden_size) if num_features else None,
            ),
        )


@dataclass(frozen=True)
class _CapturedAttention:
    """The `LayerAttention` of a forward that is captured.

    Attributes:
        queries, attended: of the forward's tokens, by layers' places.
        fill: called with a layer's place when its `queries` are there, where `attended` is to be
            made: it ends a piece, or attends.
    """

    attention: CudaAttention
    key_rows: torch.Tensor
    queries: Sequence[torch.Tensor]
    attended: Sequence[torch.Tensor]
    fill: Callable[[int], None]

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self._cells(layer).store(k, v)
        self.queries[layer].copy_(q)
        self.fill(layer)
        return self.attended[layer]

    def attend_product(
        self, layer: int, qkv: torch.Tensor, heads: Heads, rotation: Rotation
    ) -> torch.Tensor:
        rope_and_store(qkv, heads, rotation, self._cells(layer))
        self.fill(layer)
        return self.attended[layer]

    def _cells(self, layer: int) -> Cells:
        cells = self.attention.cells_at(layer, self.key_rows)
        return cells._replace(queries=self.queries[layer])


class _Pieces(NamedTuple):
    """A forward in pieces.

    Attributes:
        graphs: one more than `layers`.
        layers: the places of the layers that attend after each piece but the last. Layers that
            read the keys of an earlier one have its place.
    """

    graphs: list[torch.cuda.CUDAGraph]
    layers: list[int]


class _Captured(NamedTuple):
    """The graphs of forwards by their numbers of tokens."""

    pieces: dict[int, _Pieces]
    whole: WholeGraphs


class PiecewiseGraphs:
    """Captures and replays the forwards of a model that `is_capturable`, as `ForwardGraphs`.

    Args:
        feature_layers: as in `forward`.
        adapters: that tokens may have: their forwards are captured besides.
        states: of a step's rows; None where no layer keeps any.

    Attributes:
        sizes: counts of tokens captured, ascending; empty before `capture`.
    """

    def __init__(
        self,
        model: CausalLM,
        attention: CudaAttention,
        feature_layers: Sequence[int],
        buffers: StepBuffers,
        adapters: RunnerAdapters | None = None,
        states: FixedStates | None = None,
    ) -> None:
        self.sizes: tuple[int, ...] = ()
        self._model = model
        self._attention = attention
        self._feature_layers = feature_layers
        self._buffers = buffers
        self._states = states
        self._plain, self._adapted = self._captured(), self._captured()
        self._groups, self._active = None, ActiveAdapters()
        if adapters is not None:
            device = buffers.slots.device
            self._groups = FixedGroups(adapters, len(buffers.slots), device)
            self._active = adapters.active

    def _captured(self) -> _Captured:
        buffers = self._buffers
        return _Captured({}, WholeGraphs(self._attention, buffers.queries, buffers.attended))

    # -- capture ----------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self, pool: Any) -> None:
        """Capture every size into a memory pool, the largest first."""
        with capturing_stream():
            for size in reversed(sizes := token_ladder(len(self._buffers.slots))):
                report(len(self._plain.pieces), len(sizes))
                self._capture_size(self._plain, size, pool)
                if self._groups is not None:
                    with self._active.using(self._groups.of_size(size)):
                        self._capture_size(self._adapted, size, pool)
        self.sizes = sizes

    def _capture_size(self, captured: _Captured, size: int, pool: Any) -> None:
        self._run(size, lambda layer: None)  # makes library handles, loads kernels
        captured.pieces[size] = self._capture(size, pool)
        captured.whole.capture(size, partial(self._run, mixed=False), pool)

    def _capture(self, size: int, pool: Any) -> _Pieces:
        pieces, layers = [torch.cuda.CUDAGraph()], list[int]()

        def begin(piece: torch.cuda.CUDAGraph) -> None:
            # Other threads may load FlashInfer's modules meanwhile.
            piece.capture_begin(pool=pool, capture_error_mode="thread_local")

        def end_piece(layer: int) -> None:
            pieces[-1].capture_end()
            layers.append(layer)
            pieces.append(torch.cuda.CUDAGraph())
            begin(pieces[-1])

        begin(pieces[0])
        try:
            self._run(size, end_piece)
        finally:
            pieces[-1].capture_end()
        return _Pieces(pieces, layers)

    def _run(self, size: int, fill: Callable[[int], None], *, mixed: bool = True) -> None:
        """Run the forward of `size` tokens; `fill` as of `_CapturedAttention`.

        Args:
            mixed: rows that decode are among those that have states.
        """
        buffers = self._buffers
        attention = _CapturedAttention(
            attention=self._attention,
            key_rows=self._attention.key_rows(buffers.slots[:size]),
            queries=[each[:size] for each in buffers.queries],
            attended=[each[:size] for each in buffers.attended],
            fill=fill,
        )
        ids, positions = buffers.input_ids[:size], buffers.positions[:size]
        states = None if self._states is None else self._states.of_size(size, mixed=mixed)
        inputs = ModelInputs(ids, positions, attention, states)
        hidden = forward(self._model, inputs, buffers.slots[:size], self._feature_layers)
        buffers.hidden.final[:size] = hidden.final
        if buffers.hidden.features is not None and hidden.features is not None:
            buffers.hidden.features[:size] = hidden.features

    # -- replay -----------------------------------------------------------------------------

    def serves(self, num_tokens: int, states: StepStates | None) -> bool:
        """Whether a step of `num_tokens` tokens, whose rows have such states, can be replayed."""
        if not self.sizes or num_tokens > self.sizes[-1]:
            return False
        return states is None or (self._states is not None and self._states.fits(states))

    def replay(
        self, inputs: ModelInputs, slots: torch.Tensor, adapters: Int32Array | None = None
    ) -> Hidden:
        """Replay a forward; see `ForwardGraphs.replay`."""
        buffers, count, states = self._buffers, len(slots), inputs.states
        size = next(size for size in self.sizes if size >= count)
        buffers.input_ids[:count] = inputs.input_ids
        buffers.positions[:count] = inputs.positions
        buffers.slots[:count] = slots
        if count < size:
            buffers.slots[count:size].zero_()
            # What the last step left there may be NaN, and the null block's values must be finite.
            for attended in {id(each): each for each in buffers.attended}.values():
                attended[count:size].zero_()
        if states is not None and self._states is not None:
            self._states.put(states, count, size)
        captured = self._plain
        if adapters is not None and self._groups is not None:
            captured = self._adapted
            self._groups.put(adapters, size)
        if not captured.whole.replay(size):
            self._replay_pieces(captured.pieces[size], count)
        return buffers.hidden.of_tokens(count)

    def _replay_pieces(self, pieces: _Pieces, count: int) -> None:
        """Replay the layers of a step's tokens, of which `count` attend."""
        buffers, (*graphs, last) = self._buffers, pieces.graphs
        for layer, graph in zip(pieces.layers, graphs, strict=True):
            graph.replay()
            queries, attended = buffers.queries[layer][:count], buffers.attended[layer][:count]
            self._attention.attend_into(layer, queries, attended)
        last.replay()
