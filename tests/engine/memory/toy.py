"""A model whose layers keep a hash of a row's tokens, a window of them, and keys and values.

The hash and the window are exact, so that a state that is another row's, another position's or
lacks a token changes logits altogether. `reference` computes them in one pass in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.contracts.attention import AttentionSpec
from engine.contracts.model import Hidden, ModelInputs
from engine.contracts.named_weights import NamedWeights
from engine.memory.routes import ExpertRoutes
from engine.memory.state_rows import NULL_SLOT
from engine.memory.states import StatePart, StateSpec, StateTensor

VOCAB, HEAD_DIM, WINDOW = 60, 16, 3
PRIME = 2**31 - 1
_generator = torch.Generator().manual_seed(5)
QKV = torch.randn((3, VOCAB, HEAD_DIM), generator=_generator)
"""Query, key and value of each token."""


def hashed(state: int, token: int) -> int:
    """The hash after one more token."""
    return (state * 48271 + (token + 1) * 69621) % PRIME


def scores(hashes: torch.Tensor, windows: torch.Tensor) -> torch.Tensor:
    """Logits float64 [n, VOCAB] of hashes int64 [n] and windows int64 [n, WINDOW]."""
    ids = torch.arange(1, VOCAB + 1)
    mixed = (hashes[:, None] % 65521 * ids * ids + hashes[:, None] // 65521 * ids) % 1009
    near = (windows * torch.tensor([3, 5, 7])).sum(1, keepdim=True) % 11
    return mixed / 1009.0 * 4.0 + (near * ids % 13) / 13.0


def check_apart(parts: Sequence[StatePart]) -> None:
    """Assert that no row of these parts reads what another one writes."""
    readers: list[tuple[int, int]] = []
    writers: dict[int, int] = {}
    for part in parts:
        rows, lens = part.rows, part.rows.starts.diff().tolist()
        columns = zip(*(column.tolist() for column in rows[1:]), lens, strict=True)
        for begin, source, slot, replays, ends, slots, count in columns:
            row = len(readers)
            readers.append((row, source if begin else NULL_SLOT))
            entered = begin + (part.extent.num_certain or count)
            made = [into for end, into in zip(ends, slots, strict=True)
                    if begin - replays < end <= entered]  # fmt: skip
            writers |= dict.fromkeys([slot, *made], row)
    for row, source in readers:
        assert source == NULL_SLOT or writers.get(source, row) == row, "read and written at once"


class ToyModel:
    """The `CausalLM` of the toy layers; hidden states are what its logits are made of."""

    def __init__(self, *, chunk: int = 1) -> None:
        self.vocab_size, self.hidden_size, self.max_position = VOCAB, 2 + WINDOW + HEAD_DIM, 256
        self.attention_specs: Sequence[AttentionSpec] = [
            AttentionSpec(num_q_heads=1, num_kv_heads=1, head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
        ]
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.num_weights, self.num_feature_layers, self.is_capturable = 1, 0, False
        self.routes: ExpertRoutes | None = None
        self._chunk = chunk

    def named_weights(self) -> NamedWeights:
        return NamedWeights()

    def state_specs(self, num_drafts: int) -> Sequence[StateSpec]:
        ring = StateTensor((WINDOW + 2 * num_drafts + 1,), torch.int64)
        return [StateSpec((StateTensor((), torch.int64),), self._chunk), StateSpec((ring,))]

    def forward(self, inputs: ModelInputs, feature_layers: Sequence[int] = ()) -> Hidden:
        assert not feature_layers
        input_ids, _, attention, states = inputs
        assert states is not None
        if any(part.extent.num_certain for part in states.parts):  # a step of choices
            check_apart(states.parts)
        for part in states.parts:
            check_apart([part])
        hidden = torch.zeros((len(input_ids), self.hidden_size))
        (hashes,), (ring,) = states.layers
        for part in states.parts:
            first, last = part.rows.starts[[0, -1]].tolist()
            own = StatePart(part.rows._replace(starts=part.rows.starts - first), part.extent)
            ids = input_ids[first:last].tolist()
            hidden[first:last, : 2 + WINDOW] = self._states(ids, own, hashes, ring)
        q, k, v = (table[input_ids.long()][:, None] for table in QKV)
        hidden[:, 2 + WINDOW :] = attention.attend(0, q, k, v)[:, 0]
        return Hidden(hidden)

    def _states(
        self, ids: list[int], part: StatePart, hashes: torch.Tensor, ring: torch.Tensor
    ) -> torch.Tensor:
        """Take the rows of a part over their tokens, as a layer's kernel does."""
        rows, out = part.rows, torch.zeros((len(ids), 2 + WINDOW))
        columns = zip(*(column.tolist() for column in rows[1:]), strict=True)
        for row, (begin, source, slot, replays, ends, slots) in enumerate(columns):
            start, end = rows.starts[row : row + 2].tolist()
            if slot == NULL_SLOT:
                continue
            own, num_certain = ids[start:end], part.extent.num_certain or end - start
            line = ring[source].clone()
            state = int(hashes[source]) if begin else 0
            assert 0 <= replays <= begin
            for position in range(begin - replays, begin + len(own)):
                if position >= begin:
                    line[position % len(line)] = own[position - begin]
                state = hashed(state, int(line[position % len(line)]))
                if position >= begin:
                    seen = [position - back for back in range(WINDOW) if position >= back]
                    window = [int(line[at % len(line)]) for at in seen] + [0] * WINDOW
                    out[start + position - begin] = torch.tensor(
                        [state // 65521, state % 65521, *window[:WINDOW]]
                    )
                if position < begin + num_certain:
                    self._store(position + 1, state, line, hashes, ring, slot, ends, slots)
            ring[slot] = line  # drafts too: the next step replays those that were accepted
        return out

    def _store(
        self,
        end: int,
        state: int,
        line: torch.Tensor,
        hashes: torch.Tensor,
        ring: torch.Tensor,
        slot: int,
        ends: list[int],
        slots: list[int],
    ) -> None:
        hashes[slot] = state
        if end in ends:
            into = slots[ends.index(end)]
            hashes[into], ring[into] = state, line

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        whole = hidden.to(torch.int64)
        exact = scores(whole[:, 0] * 65521 + whole[:, 1], whole[:, 2 : 2 + WINDOW])
        attended = hidden[:, 2 + WINDOW :].double() @ QKV[2].double().T
        return (exact + 0.05 * attended).float()


def reference(token_ids: Sequence[int]) -> torch.Tensor:
    """Logits float64 [n, VOCAB] after each of n tokens, in one pass."""
    ids, state = torch.tensor(token_ids), 0
    hashes, windows = [], []
    for i, token in enumerate(token_ids):
        state = hashed(state, token)
        hashes.append(state)
        last = list(reversed(token_ids[max(i + 1 - WINDOW, 0) : i + 1]))
        windows.append(last + [0] * (WINDOW - len(last)))
    q, k, v = QKV.double()[:, ids]
    weights = q @ k.T * HEAD_DIM**-0.5
    weights += torch.full_like(weights, -np.inf).triu(1)
    attended: torch.Tensor = weights.softmax(-1) @ v @ QKV[2].double().T
    whole: torch.Tensor = scores(torch.tensor(hashes), torch.tensor(windows)) + 0.05 * attended
    return whole
