"""The adapters of steps: copied into slots, and the groups of tokens that have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.adapters.product import HostAdapter
from engine.adapters.stacks import AdapterStacks
from engine.adapters.store import AdapterStore
from engine.arrays import Int32Array
from engine.contracts.adapters import NO_SLOT, AdapterLoad
from engine.contracts.model import CausalLM
from engine.kernels.lora.groups import TILE, TokenGroups, group_tokens, num_tiles
from engine.plan import StepPlan
from engine.weights.handles import named_tensors
from sampling.device.mirror import to_device_together


class RunnerAdapters:
    """The adapters of one runner.

    Attributes:
        store: of those on the host.
        active: what the model's products read.
        handovers: for steps of a lone row; None on a CPU.
        has_head: the LM head is one of them.
    """

    def __init__(self, stacks: AdapterStacks) -> None:
        self._stacks = stacks
        self.store = AdapterStore(stacks, named_tensors)
        self.active, self.num_slots = stacks.active, stacks.num_slots
        self.handovers, self.has_head = stacks.handovers(), stacks.has_head

    def of_loads(self, loads: Sequence[AdapterLoad]) -> list[tuple[int, HostAdapter]]:
        """The adapters of loads, which are there until they are copied."""
        return [(load.slot, self.store.get(load.number)) for load in loads]

    def of_head(self, plan: StepPlan, rows: Int32Array, device: torch.device) -> TokenGroups | None:
        """The groups of logit rows int32 [N], each of one of a plan's rows; None for none."""
        slots = self.slots_of(plan, rows)
        return None if slots is None else groups_of(slots, device)

    def slots_of(self, plan: StepPlan, rows: Int32Array) -> Int32Array | None:
        """The slots of the LM head's rows int32 [N]; None where it has no adapter to read."""
        if plan.adapters is None or not self.has_head:
            return None
        by_row = np.full(int(max(plan.rows.max(), rows.max())) + 1, NO_SLOT, dtype=np.int32)
        by_row[plan.rows] = plan.adapters
        return by_row[rows]

    def load(self, adapters: Sequence[tuple[int, HostAdapter]]) -> None:
        """Copy adapters into slots, after all that was issued before."""
        for slot, adapter in adapters:
            self._stacks.load(slot, adapter)


class HeadLogits:
    """The logits of rows of hidden states, each by its adapter.

    Args:
        adapters: that rows may have; None where none are served.
    """

    def __init__(self, model: CausalLM, adapters: RunnerAdapters | None) -> None:
        self._model, self._adapters = model, adapters

    def __call__(self, hidden: torch.Tensor, slots: Int32Array | None) -> torch.Tensor:
        """The logits of hidden [N, hidden_size]; slots int32 [N], None where there is none."""
        if slots is None or self._adapters is None or not self._adapters.has_head:
            return self._model.logits(hidden)
        with self._adapters.active.using(groups_of(slots, hidden.device)):
            return self._model.logits(hidden)


def of_tokens(slots: Int32Array | None, num_query: Int32Array) -> Int32Array | None:
    """The slots of tokens int32 [T], of rows' slots int32 [R] and their numbers of tokens."""
    return None if slots is None else np.repeat(slots, num_query)


def groups_of(slots: Int32Array | None, device: torch.device) -> TokenGroups | None:
    """The groups of a step's tokens by their slots int32 [T]; None where none has an adapter."""
    if slots is None:
        return None
    tokens, tiles, by_token = to_device_together((*group_tokens(slots), slots), device)
    return TokenGroups(tokens, tiles, by_token)


class FixedGroups:
    """Groups of tokens at a fixed address, for steps that graphs hold.

    Args:
        max_tokens: of the largest step.
    """

    def __init__(self, adapters: RunnerAdapters, max_tokens: int, device: torch.device) -> None:
        self._num_slots, self._device = adapters.num_slots, device
        count = num_tiles(max_tokens, adapters.num_slots)
        self._tokens = torch.full((count, TILE), -1, dtype=torch.int32, device=device)
        self._slots = torch.full((count,), NO_SLOT, dtype=torch.int32, device=device)
        self._by_token = torch.full((max_tokens,), NO_SLOT, dtype=torch.int32, device=device)

    def of_size(self, num_tokens: int) -> TokenGroups:
        """The groups of steps of so many tokens."""
        count = num_tiles(num_tokens, self._num_slots)
        by_token = self._by_token[:num_tokens]
        return TokenGroups(self._tokens[:count], self._slots[:count], by_token, in_graph=True)

    def put(self, slots: Int32Array, num_tokens: int) -> None:
        """Enter the slots int32 [T] of a step that is padded to a number of tokens."""
        target = self.of_size(num_tokens)
        by_token = np.full(num_tokens, NO_SLOT, dtype=np.int32)
        by_token[: len(slots)] = slots
        arrays = (*group_tokens(by_token, count=len(target.slots)), by_token)
        tensors = target.tokens, target.slots, self._by_token[:num_tokens]
        for tensor, values in zip(tensors, to_device_together(arrays, self._device), strict=True):
            tensor.copy_(values)
