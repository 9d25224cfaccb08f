"""The products of all experts of a layer, by what their weights are stored as.

Each kind multiplies in plain torch (an expert's rows at a time), in the kernels for a few tokens,
and in those for many, whose rows are grouped by expert.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812

from engine.kernels.experts.adapted import ExpertAdapters, ExpertDeltas
from engine.kernels.experts.few import SharedFew, down_few, gate_up_few
from engine.kernels.experts.few_fp8 import down_few_fp8, gate_up_few_fp8
from engine.kernels.experts.few_int4 import down_few_int4, gate_up_few_int4
from engine.kernels.experts.grouped import grouped_linear
from engine.kernels.experts.grouped_int4 import grouped_int4
from engine.kernels.experts.groups import Groups
from engine.kernels.experts.inputs import ordered_inputs, rounded_inputs
from engine.kernels.experts.routing import Routing
from engine.kernels.experts.weights import DenseExperts, Fp8Experts, Int4Experts
from engine.kernels.fp8 import Fp8Rows, quantize_rows_by
from engine.kernels.quantized.fp8_blocks import Fp8Blocks

Rounded = Fp8Rows | Fp8Blocks


class ExpertProduct(Protocol):
    """Weights [experts, out, in], and the ways to multiply by them.

    In shapes, T are tokens, k the experts that each takes, P = T * k their pairs.
    """

    @property
    def shape(self) -> torch.Size:
        """Number of experts, output and input features."""
        ...

    def linear(self, expert: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Multiply x [n, in] by an expert's weight in plain torch, and add its row of `bias`.

        Returns:
            [n, out], of x's dtype, float32 where the weight is quantized.
        """
        ...

    def room(self, num_rows: int) -> Rounded | None:
        """Room for inputs that another kernel may round ahead of the product; None: none does."""
        ...

    def gate_up_few(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        gate: str,
        rounded: Rounded | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Join the products [P, inner] of a few tokens x [T, in] by their experts' ids [T, k].

        Args:
            rounded: x as it was written into `room`.
            delta: [P, out], added to the products ahead of the gate, where it is not zero.
        """
        ...

    def down_few(
        self,
        x: torch.Tensor,
        routing: Routing,
        bias: torch.Tensor | None,
        base: torch.Tensor | None,
    ) -> torch.Tensor:
        """The weighted sums [T, out] of the products of a few tokens' pairs x [P, in]."""
        ...

    def grouped(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        groups: Groups,
        gate: str | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The products of many pairs, as `grouped_linear` gives them."""
        ...


class DenseExpertProduct(DenseExperts):
    """An `ExpertProduct` of weights that are not quantized."""

    __slots__ = ()

    def linear(self, expert: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, self.values[expert], None if bias is None else bias[expert])

    def room(self, num_rows: int) -> Rounded | None:
        return None

    def gate_up_few(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        gate: str,
        rounded: Rounded | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return gate_up_few(x, ids, self.values, bias, gate, delta=delta)

    def down_few(
        self,
        x: torch.Tensor,
        routing: Routing,
        bias: torch.Tensor | None,
        base: torch.Tensor | None,
    ) -> torch.Tensor:
        return down_few(x, routing, self.values, bias, base)

    def grouped(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        groups: Groups,
        gate: str | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return grouped_linear(x, self, bias, groups, ids.shape[1], gate, delta=delta)


class Fp8ExpertProduct(Fp8Experts):
    """An `ExpertProduct` of float8 weights, whose inputs are rounded too."""

    __slots__ = ()

    def linear(self, expert: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        kind = Fp8Blocks if self.num_spans else Fp8Rows
        weight = kind(self.values[expert], self.scales[expert])
        if self.input_scales is None:
            rounded = self.rounded(x)
        else:
            rounded = quantize_rows_by(x, self.input_scales[expert].expand(len(x)))
        out = F.linear(rounded.dequantized(), weight.dequantized())
        return out if bias is None else out + bias[expert]

    def room(self, num_rows: int) -> Rounded | None:
        return self.empty_inputs(num_rows) if self.input_scales is None else None

    def gate_up_few(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        gate: str,
        rounded: Rounded | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows, ids = (rounded, ids) if rounded else rounded_inputs(x, ids, self)
        return gate_up_few_fp8(rows, ids, self, bias, gate, x.dtype, delta=delta)

    def down_few(
        self,
        x: torch.Tensor,
        routing: Routing,
        bias: torch.Tensor | None,
        base: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, _ = rounded_inputs(x, routing.ids, self)
        return down_few_fp8(rows, routing, self, bias, base, x.dtype)

    def grouped(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        groups: Groups,
        gate: str | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        rows, ids = rounded_inputs(x, ids, self, groups.order if gate is None else None)
        return grouped_linear(
            rows, self, bias, groups, ids.shape[1], gate, dtype=x.dtype, delta=delta
        )


class Int4ExpertProduct(Int4Experts):
    """An `ExpertProduct` of 4-bit weights."""

    __slots__ = ()

    def linear(self, expert: int, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        x = x if self.order is None else x[:, self.order[expert].long()]
        out = F.linear(x.float(), self.of(expert))
        return out if bias is None else out + bias[expert]

    def room(self, num_rows: int) -> Rounded | None:
        return None

    def gate_up_few(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        gate: str,
        rounded: Rounded | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x, ids = ordered_inputs(x, ids, self)
        return gate_up_few_int4(x, ids, self, bias, gate, delta)

    def down_few(
        self,
        x: torch.Tensor,
        routing: Routing,
        bias: torch.Tensor | None,
        base: torch.Tensor | None,
    ) -> torch.Tensor:
        x, _ = ordered_inputs(x, routing.ids, self)
        return down_few_int4(x, routing, self, bias, base)

    def grouped(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        bias: torch.Tensor | None,
        groups: Groups,
        gate: str | None,
        delta: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x, ids = ordered_inputs(x, ids, self, groups.order if gate is None else None)
        return grouped_int4(x, self, bias, groups, ids.shape[1], gate, delta)


class ExpertWeights(NamedTuple):
    """The experts' products.

    Attributes:
        gate_up: [experts, 2 * inner, hidden], gate rows, then up rows; [experts, inner, hidden]
            where the gate joins one product alone.
        down: [experts, hidden, inner].
        gate_up_bias, down_bias: [experts, channels of gate_up], [experts, hidden].
        gate: how gate and up are joined, see `gates`.
        adapters: beside them; None where none are served.
    """

    gate_up: ExpertProduct
    down: ExpertProduct
    gate_up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    gate: str
    adapters: ExpertAdapters | None = None

    def beside(self, shared: SharedFew | None) -> SharedFew | None:
        """The expert that all tokens take, where kernels for a few tokens take it beside these."""
        first, second = self.gate_up, self.down
        dense = isinstance(first, DenseExpertProduct) and isinstance(second, DenseExpertProduct)
        plain = self.gate_up_bias is None and self.down_bias is None and self.adapters is None
        if shared is None or not (dense and plain):
            return None
        inner, width = self.down.shape[2], shared.down.shape[1]
        return shared if width % inner == 0 else None

    def deltas(self, ids: torch.Tensor, order: torch.Tensor | None = None) -> ExpertDeltas | None:
        """What adapters add for pairs of ids [T, k]; None where no token of the step has one.

        Args:
            order: int32 [T * k], the pair at each place; None is in order.
        """
        return None if self.adapters is None else self.adapters.of_step(ids, order)
