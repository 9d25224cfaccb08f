"""The expert that every token takes, read beside those that are chosen."""

from __future__ import annotations

from engine.kernels.experts.few import SharedFew
from engine.kernels.experts.gates import num_products
from engine.kernels.experts.layer import SharedExpert
from engine.kernels.experts.shared_gate import SharedGate
from engine.kernels.invariant.product import InvariantProduct
from engine.models.formats.part import WeightProduct
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.activation import Activation
from engine.models.weights.shares import undivided


def read_shared_expert(
    reader: WeightReader,
    name: str,
    names: tuple[str, ...],
    sizes: tuple[int, int],
    gate: str,
    *,
    has_gate: bool,
) -> SharedExpert:
    """Read the expert of a name.

    Args:
        names: of its products; gate and up may be packed in one.
        sizes: of the stream, and between the products.
        gate: how gate and up are joined, see `gates`.
        has_gate: its output is multiplied by a sigmoid, of a product beside it.
    """
    hidden, columns = undivided(sizes[0]), reader.ranks.columns(sizes[1])
    *first, last = (f"{name}.{part}" for part in names)
    outputs = (columns,) * (num_products(gate) // len(first))
    gate_up = reader.product([Projection(part, outputs) for part in first], hidden)
    down = reader.product([Projection(last, (hidden,))], columns)
    shared_gate = None
    if has_gate:
        weight = reader.unquantized(f"{name}_gate", undivided(1), sizes[0])
        invariant = InvariantProduct(weight).compiled() if reader.modules.invariant else None
        shared_gate = SharedGate(weight, invariant)
    activation = Activation(gate, num_products(gate) == 2)
    few = _few(gate_up, down, shared_gate)
    return SharedExpert(gate_up.linear, down.linear, shared_gate, activation.__call__, few)


def _few(gate_up: WeightProduct, down: WeightProduct, gate: SharedGate | None) -> SharedFew | None:
    """What kernels for a few tokens multiply by, where they can by both products."""
    first, second = gate_up.skinny_weight(), down.skinny_weight()
    if first is None or second is None:
        return None
    return SharedFew(first.weight, second.weight, None if gate is None else gate.weight)
