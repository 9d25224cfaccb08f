"""The slots of adapters on the device: beside each product, a stack of A and of B.

All that one adapter has in a slot is one range of one tensor, so that it comes there by one copy.
Products read the stacks at addresses that never change.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.adapters.config import matches
from engine.adapters.folder import AdapterTensors
from engine.adapters.parts import (
    ExpertModules,
    ModulePart,
    ProductModule,
    indices,
    joined_rows,
    parts_of,
    whole_of,
)
from engine.adapters.product import HostAdapter, ProductStacks
from engine.adapters.targets import (
    HEAD,
    AdapterTarget,
    AdapterTargets,
    stacked_name,
)
from engine.kernels.lora.groups import TILE, ActiveAdapters
from engine.kernels.lora.lone import Handovers
from engine.models.weights.shares import RankShare


class AdapterStacks:
    """The slots of a model's adapters, for those of its modules that products multiply by.

    Args:
        num_slots: adapters that a step can have. max_rank: the largest rank of one.
        wanted: names of modules, or ends of them, that adapters change; None is all.

    Attributes:
        active: of the forward under way.
        targets: modules by name.
        has_head: adapters may change the LM head.
    """

    def __init__(
        self, num_slots: int, max_rank: int, wanted: tuple[str, ...] | None = None
    ) -> None:
        self.num_slots, self.max_rank = num_slots, max_rank
        self.active = ActiveAdapters()
        self.targets = AdapterTargets()
        self.has_head = False
        self._wanted = wanted
        self._rank = max(TILE, 1 << (max_rank - 1).bit_length())  # as kernels multiply it
        self._products: list[ProductStacks] = []

    def add(self, modules: Sequence[ProductModule], inputs: RankShare) -> ProductStacks | None:
        """Make room for the adapters of a product, which `allocate` fills; None for none."""
        parts = [parts_of(module) for module in modules]
        names = [part.name for own in parts for part in own]
        if not self._wants([*(module.name for module in modules), *names]):
            return None
        product = self._new([part.width for own in parts for part in own], inputs.length)
        columns, index = indices(1, (inputs,)), 0
        for module, own in zip(modules, parts, strict=True):
            for offset, part in enumerate(own):
                self._note(_target(product, part, index + offset, 1, columns, inputs.whole))
            if len(own) > 1:
                self._note(
                    _target(product, whole_of(module), index, len(own), columns, inputs.whole)
                )
            index += len(own)
        return product

    def add_embedding(self, name: str, vocab_size: int, hidden_size: int) -> ProductStacks | None:
        """Make room for the adapters of the token embeddings; None for none."""
        if not self._wants([name]):
            return None
        product = self._new([hidden_size], vocab_size, is_embedding=True)
        whole = ModulePart(name.rpartition(".")[2], None, hidden_size, hidden_size)
        self._note(_target(product, whole, 0, 1, None, vocab_size))
        return product

    def add_head(
        self, name: str, ids: RankShare, hidden_size: int, *, is_tied: bool
    ) -> ProductStacks | None:
        """Make room for the adapters of the LM head, of the rank's ids; None for none."""
        self.targets.ties_head = is_tied
        if not self._wants([name]):
            return None
        self.has_head = True
        product = self._new([ids.length], hidden_size)
        own = ModulePart(HEAD, indices(0, (ids,)), ids.length, ids.whole)
        self._note(_target(product, own, 0, 1, None, hidden_size))
        return product

    def add_experts(self, experts: ExpertModules) -> tuple[ProductStacks, ProductStacks] | None:
        """Make room for the adapters of a layer's experts: of gate and up, and of down."""
        if not self._wants(experts.names):
            return None
        inner, width, count = experts.inner, experts.width, experts.num_experts
        num_first, size = len(experts.first), inner.length
        first = self._new([size] * num_first, width, count)
        last = self._new([width], size, count)
        both, back = [], []
        for expert, order in enumerate(experts.orders):
            columns = indices(0, (inner,)) if order is None else order.cpu()
            name = f"{experts.name}.{expert}"
            for index, part in enumerate(experts.first):
                own = ModulePart(f"{name}.{part}", columns, size, inner.whole)
                self._note(_target(first, own, index, 1, None, width, expert))
            whole = ModulePart(f"{name}.{experts.last}", None, width, width)
            back.append(self._note(_target(last, whole, 0, 1, columns, inner.whole, expert)))
            rows = joined_rows(columns, num_first, inner.whole, experts.is_interleaved)
            own = ModulePart(f"{name}.", rows, num_first * size, num_first * inner.whole)
            both.append(_target(first, own, 0, num_first, None, width, expert))
        for tensor, targets in zip(experts.tensors, (both, back), strict=True):
            self.targets.stacked[stacked_name(f"{experts.name}.{tensor}")] = targets
        return first, last

    @property
    def size(self) -> int:
        """Numbers of an adapter in a slot."""
        return self._products[-1].end if self._products else 0

    @property
    def num_scales(self) -> int:
        """Scales of an adapter in a slot."""
        return self._products[-1].end_of_scales if self._products else 0

    @property
    def num_bytes(self) -> int:
        """Size of all slots."""
        return self._numbers.nbytes + self._scales.nbytes

    def allocate(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the slots of all products, with zeros in them, when all were added."""
        self._numbers = torch.zeros((self.num_slots, self.size), dtype=dtype, device=device)
        self._scales = torch.zeros((self.num_slots, self.num_scales), device=device)
        for product in self._products:
            product.over(self._numbers, self._scales)

    def handovers(self) -> Handovers | None:
        """Make the words that products of a lone row hand numbers over in; None on a CPU."""
        if not self._numbers.is_cuda:
            return None
        widest = max((len(product.bounds) - 1 for product in self._products), default=0)
        device = self._numbers.device
        return Handovers(len(self._products), widest * self._rank, device)

    def to_host(self, adapter: AdapterTensors) -> HostAdapter:
        """Lay an adapter out as it is in a slot.

        Raises:
            AdapterError: it is not of this base.
        """
        fitted = self.targets.fit(adapter)
        pinned = self._numbers.is_cuda
        numbers = torch.zeros(self.size, dtype=self._numbers.dtype, pin_memory=pinned)
        host = HostAdapter(numbers, torch.zeros(self.num_scales, pin_memory=pinned))
        for target, factors in fitted:
            self._products[target.product].put(host, target, target.own(factors))
        return host

    def load(self, slot: int, adapter: HostAdapter) -> None:
        """Copy an adapter into a slot, after all that was issued before."""
        self._numbers[slot].copy_(adapter.numbers, non_blocking=True)
        self._scales[slot].copy_(adapter.scales, non_blocking=True)

    def _wants(self, names: Sequence[str]) -> bool:
        """Whether adapters change one of some modules; notes those that they do not."""
        if self._wanted is None or any(matches(self._wanted, name) for name in names):
            return True
        self.targets.left_out.update(names)
        return False

    def _new(
        self,
        widths: Sequence[int],
        num_inputs: int,
        num_experts: int = 1,
        *,
        is_embedding: bool = False,
    ) -> ProductStacks:
        product = ProductStacks(
            len(self._products),
            *(widths, num_inputs, self._rank, self.size, self.num_scales, num_experts),
            is_embedding=is_embedding,
        )
        self._products.append(product)
        return product

    def _note(self, target: AdapterTarget) -> AdapterTarget:
        """Let modules of a target's name be served by it."""
        self.targets.modules[target.name] = target
        return target


def _target(
    product: ProductStacks,
    part: ModulePart,
    index: int,
    count: int,
    columns: torch.Tensor | None,
    num_inputs: int,
    expert: int = 0,
) -> AdapterTarget:
    """The target of a part that is modules `index` to `index + count` of a product."""
    return AdapterTarget(
        part.name,
        product.index,
        expert,
        slice(index, index + count),
        product.bounds[index],
        part.rows,
        columns,
        (part.whole, num_inputs),
    )
