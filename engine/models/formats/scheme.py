"""The scheme of a quantised product, and which of a checkpoint's products have which."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from engine.kernels.quantized.int4 import GROUPS

Storage = Literal["fp8", "fp8-blocks", "gptq", "awq", "packed"]
Inputs = Literal["as they are", "by token", "by span", "by tensor"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the weight of a product is stored, and how its input is rounded.

    Attributes:
        storage: which tensors hold it, see `unpack`.
        inputs: rounded to float8 with a scale a token, a scale a span of 128 numbers of a token,
            or one scale that the checkpoint has; or not at all.
        group: inputs of a channel under one scale, of 4-bit weights; 0 is the whole channel.
        has_zeros: 4-bit weights have zero points of their own; else all are 8.
        zero_offset: what is added to a zero point as it is stored.
        block: channels and inputs under one scale, of float8 weights by blocks.
        largest_input: greatest magnitude that is not cut off where inputs are rounded by token.
    """

    storage: Storage
    inputs: Inputs = "as they are"
    group: int = 0
    has_zeros: bool = False
    zero_offset: int = 0
    block: tuple[int, int] = (0, 0)
    largest_input: float | None = None

    @property
    def is_fp8(self) -> bool:
        """Whether products are of float8 numbers, which a GPU must have."""
        return self.storage in ("fp8", "fp8-blocks")

    @property
    def input_group(self) -> int:
        """Neighbouring inputs of a channel that share one scale, as products keep them.

        1 where the scale is of the whole channel, and any part of the inputs may have it.
        """
        if self.is_fp8:
            return self.block[1] or 1
        return min(self.group or GROUPS[-1], GROUPS[-1])


@dataclass(frozen=True)
class SchemeGroup:
    """Modules of one scheme.

    Attributes:
        targets: names of modules, or `re:` and an expression that a name begins with; "Linear"
            holds for all.
        scheme: None leaves them as they are.
    """

    targets: tuple[str, ...]
    scheme: Scheme | None


@dataclass(frozen=True)
class Quantization:
    """What a checkpoint's `quantization_config` says.

    Attributes:
        name: method and format, as the statement of error names them.
        groups: the first that a module's name or class matches gives its scheme.
        ignored: modules that are not quantised, as in `SchemeGroup.targets`.
        ignored_parts: the same for methods that ignore by a part of the name.
        expert_group: inputs under one scale of experts that are read by no scheme.
    """

    name: str
    groups: tuple[SchemeGroup, ...]
    ignored: tuple[str, ...] = ()
    ignored_parts: tuple[str, ...] = ()
    expert_group: int = 1

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a linear module, by its name in the checkpoint; None: it is as it was."""
        if _matches(module, self.ignored) or _has_part(module, self.ignored_parts):
            return None
        for exact in (True, False):  # a name is nearer than a class
            for group in self.groups:
                targets = tuple(t for t in group.targets if (t != "Linear") == exact)
                if _matches(module, targets):
                    return group.scheme
        return None

    @property
    def schemes(self) -> tuple[Scheme, ...]:
        """All schemes."""
        return tuple(group.scheme for group in self.groups if group.scheme is not None)

    @property
    def input_group(self) -> int:
        """Neighbouring inputs that a division of any product must keep together."""
        return math.lcm(self.expert_group, *(scheme.input_group for scheme in self.schemes))


def _matches(module: str, targets: tuple[str, ...]) -> bool:
    """As compressed-tensors matches names: whole, or an expression from their beginning."""
    return any(
        target == "Linear"
        or (re.match(target[3:], module) if target.startswith("re:") else target == module)
        for target in targets
    )


def _has_part(module: str, parts: tuple[str, ...]) -> bool:
    """As transformers matches `modules_to_not_convert`.

    A pattern matches from the beginning up to a dot or the end, or is the name's end.
    """
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    return any(
        re.match(rf"(?:{part}){boundary}", module) or module.endswith(part) for part in parts
    )
