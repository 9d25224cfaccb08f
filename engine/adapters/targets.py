"""The base's modules that adapters may change: those that a product multiplies by."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine.adapters.config import MERGE
from engine.adapters.folder import AdapterTensors, Factors
from engine.errors import AdapterError

IN_LAYER = re.compile(r"(?:^|\.)((?:layers|h|blocks)\.\d+\..+)$")
"""The end of a module's name that is the same in all spellings of a model's beginning."""
STACKED = re.compile(r"(?:^|\.)((?:layers|h|blocks)\.\d+\.)(?:.+\.)?(experts\.\w+)$")
"""A tensor of all experts of a layer, whatever holds them there."""
SUBMODULE = re.compile(r"(?:^|\.)((?:layers|h|blocks)\.\d+\.\w+\.)(?:.+\.)?(\w+)$")
"""A module of a layer's mixer or MLP, whatever holds it there."""
OUTSIDE = re.compile(r"(?:^|\.)(embed_tokens|embeddings|lm_head)$")
"""Modules outside the layers, of which a model has one each."""
JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Names of modules that some checkpoints and trainers join, and of their parts, in order."""
EMBEDDINGS, HEAD = ("embed_tokens", "embeddings"), "lm_head"


class AdapterTarget(NamedTuple):
    """A module, and what a rank has of it.

    Attributes:
        product: that multiplies by it, an index. expert: of the product's, 0 where it has none.
        modules: of the product that the module is: several, where the checkpoint joins them.
        first: the first of its outputs among the rank's of the product.
        rows: int64, the outputs that the rank's product has of it, in order; None is all.
        columns: the same of its inputs.
        shape: of its whole weight, [out, in]; of an embedding [hidden, vocab].
    """

    name: str
    product: int
    expert: int
    modules: slice
    first: int
    rows: torch.Tensor | None
    columns: torch.Tensor | None
    shape: tuple[int, int]

    def own(self, factors: Factors) -> Factors:
        """The rank's parts of A and B."""
        a, b = factors.a, factors.b
        return Factors(
            a if self.columns is None else a[:, self.columns],
            b if self.rows is None else b[self.rows],
            factors.scale,
        )


@dataclass
class AdapterTargets:
    """The modules of a base.

    Attributes:
        modules: by name. stacked: modules of all experts, by the name of the tensor of them.
        ties_head: the head multiplies by the embeddings.
        left_out: names of modules that `--lora-target-modules` gives no room.
    """

    modules: dict[str, AdapterTarget] = field(default_factory=dict)
    stacked: dict[str, Sequence[AdapterTarget]] = field(default_factory=dict)
    ties_head: bool = False
    left_out: set[str] = field(default_factory=set)

    def fit(self, adapter: AdapterTensors) -> list[tuple[AdapterTarget, Factors]]:
        """Find the targets of an adapter's modules, those of joined modules apart.

        Raises:
            AdapterError: a module is not of the base, or has another shape there.
        """
        self._check_vocabulary(adapter)
        names = _Names(self)
        found: list[tuple[AdapterTarget, Factors]] = []
        for module, factors in adapter.modules.items():
            if factors.is_stacked:
                found += self._of_experts(adapter, module, factors, names)
            elif (target := names.find(module)) is not None:
                _check_kind(adapter, module, factors)
                _check_shape(adapter, module, factors, target.shape)
                found.append((target, factors))
            else:
                found += self._apart(adapter, module, factors, names)
        return found + self._tied(adapter, names)

    def _of_experts(
        self, adapter: AdapterTensors, module: str, factors: Factors, names: _Names
    ) -> list[tuple[AdapterTarget, Factors]]:
        """The factors of each expert of a tensor that holds all of them."""
        targets = names.stacked(module)
        if targets is None:
            raise self._unknown(adapter, module)
        count, shape = len(targets), targets[0].shape
        rank = len(factors.a) // count
        own = factors.b.shape[0], factors.a.shape[1]
        if len(factors.a) % count or own not in (shape, shape[::-1]):
            raise AdapterError(
                f"{adapter.folder}: the adapter of {module!r} is of {len(factors.a)} ranks and "
                f"weights {list(own)}, and the base has {count} experts of {list(shape)}; give an "
                "adapter of this base"
            )
        # PEFT keeps [experts * rank, in] and [out, rank * experts], experts last (ParamWrapper).
        a = factors.a.reshape(count, rank, -1)
        b = factors.b.reshape(-1, rank, count).permute(2, 0, 1)
        if own != shape:  # versions of PEFT before 0.18 took inputs for outputs
            a, b = b.transpose(1, 2), a.transpose(1, 2)
        return [
            (target, Factors(a[expert], b[expert], factors.scale))
            for expert, target in enumerate(targets)
        ]

    def _apart(
        self, adapter: AdapterTensors, module: str, factors: Factors, names: _Names
    ) -> list[tuple[AdapterTarget, Factors]]:
        """The factors of modules that a trainer has joined: A is the same for all of them."""
        head, _, last = module.rpartition(".")
        parts = [names.find(f"{head}.{part}") for part in JOINED.get(last, ())]
        targets = [part for part in parts if part is not None]
        if not parts or len(targets) < len(parts):
            raise self._unknown(adapter, module)
        sizes = [part.shape[0] for part in targets]
        _check_shape(adapter, module, factors, (sum(sizes), targets[0].shape[1]))
        pieces = torch.split(factors.b, sizes)
        return [(part, factors._replace(b=b)) for part, b in zip(targets, pieces, strict=True)]

    def _tied(self, adapter: AdapterTensors, names: _Names) -> list[tuple[AdapterTarget, Factors]]:
        """What a head that is tied to adapted embeddings gets of them (`ensure_weight_tying`)."""
        if not adapter.ties_head or not self.ties_head:
            return []
        by_name = {module.rpartition(".")[2]: each for module, each in adapter.modules.items()}
        embedding = next((by_name[each] for each in EMBEDDINGS if each in by_name), None)
        head = names.find(HEAD)
        if embedding is None or HEAD in by_name:
            return []
        if head is None:
            raise self._unknown(adapter, HEAD)
        return [(head, Factors(embedding.b.t(), embedding.a.t(), embedding.scale))]

    def _check_vocabulary(self, adapter: AdapterTensors) -> None:
        """Refuse embeddings and heads that were saved for another vocabulary than the base's."""
        for name, shape in adapter.of_base.items():
            match = OUTSIDE.search(name.removesuffix(".weight").removesuffix(".base_layer"))
            target = None if match is None else self.modules.get(match[1])
            if match is None or target is None:
                continue
            own = target.shape if match[1] == HEAD else target.shape[::-1]
            if shape != own:
                raise AdapterError(
                    f"{adapter.folder}: tensor {name!r} has shape {list(shape)}, and the base's "
                    f"is {list(own)}: the vocabulary was resized; {MERGE}"
                )

    def _unknown(self, adapter: AdapterTensors, module: str) -> AdapterError:
        end = module.rpartition(".")[2]
        if any(end == name.rpartition(".")[2] for name in self.left_out):
            return AdapterError(
                f"{adapter.folder}: there is no room for adapters of {module!r}, which "
                f"--lora-target-modules leaves out; start the server with {end} among them"
            )
        return AdapterError(
            f"{adapter.folder}: the base has no module {module!r} that adapters may change; "
            f"they are {_ends([*self.modules, *self.stacked])}. Give an adapter of this base, or "
            f"{MERGE}"
        )


class _Names:
    """Finds targets by the names that adapters give them."""

    def __init__(self, targets: AdapterTargets) -> None:
        self._targets = targets
        self._by_end = {
            match[1]: target
            for name, target in targets.modules.items()
            if (match := IN_LAYER.search(name) or OUTSIDE.search(name))
        }
        self._by_part: dict[str, list[AdapterTarget]] = {}
        for name, target in targets.modules.items():
            if (match := SUBMODULE.search(name)) is not None:
                self._by_part.setdefault(match[1] + match[2], []).append(target)

    def find(self, module: str) -> AdapterTarget | None:
        """The target of a module; None where the base has none."""
        match = IN_LAYER.search(module) or OUTSIDE.search(module)
        found = self._targets.modules.get(module) or (self._by_end.get(match[1]) if match else None)
        if found is None and (part := SUBMODULE.search(module)) is not None:
            alike = self._by_part.get(part[1] + part[2], [])  # a library may nest them otherwise
            found = alike[0] if len(alike) == 1 else None
        return found

    def stacked(self, module: str) -> Sequence[AdapterTarget] | None:
        """The targets of a tensor of all experts, one an expert."""
        return self._targets.stacked.get(stacked_name(module))


def stacked_name(name: str) -> str:
    """What a tensor of all experts of a layer is known by."""
    if (match := STACKED.search(name)) is not None:
        return match[1] + match[2]
    match = IN_LAYER.search(name)
    return name if match is None else match[1]


def _check_kind(adapter: AdapterTensors, module: str, factors: Factors) -> None:
    """Refuse tensors of an embedding for another module, and the other way round."""
    is_embedding = module.rpartition(".")[2] in EMBEDDINGS
    if factors.is_embedding != is_embedding:
        wanted = "lora_embedding_A and lora_embedding_B" if is_embedding else "lora_A and lora_B"
        raise AdapterError(
            f"{adapter.folder}: the tensors of {module!r} must be {wanted}; save the adapter anew"
        )


def _check_shape(
    adapter: AdapterTensors, module: str, factors: Factors, shape: tuple[int, int]
) -> None:
    own = factors.b.shape[0], factors.a.shape[1]
    if own != shape:
        raise AdapterError(
            f"{adapter.folder}: the adapter of {module!r} is of a weight {list(own)}, and the "
            f"base's is {list(shape)}; give an adapter of this base"
        )


def _ends(targets: Iterable[str]) -> str:
    """The last parts of modules' names, each once."""
    return ", ".join(dict.fromkeys(target.rpartition(".")[2] for target in targets))
