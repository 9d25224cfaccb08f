"""Statistics of several engines as if they were one."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

import msgspec

from engine.contracts.info import EngineInfo
from engine.stats import AdapterStats, EngineStats

_GAUGES = {"num_running": 0, "num_waiting": 0, "kv_blocks_used": 0, "kv_blocks_total": 0}
_ADAPTER_GAUGES: dict[str, Any] = {"running": (), "waiting": (), "num_slots": 0, "num_held": 0}
_SNAPSHOT_GAUGES = {"num_total": 0, "num_kept": 0, "total_bytes": 0, "kept_bytes": 0}


def total_stats(stats: Iterable[EngineStats]) -> EngineStats | None:
    """The sum of statistics; None of none."""
    found = list(stats)
    return reduce(_add, found) if found else None


def counters_only(stats: EngineStats) -> EngineStats:
    """What an engine that is gone leaves behind: its counters, which must not fall."""
    snapshots = stats.snapshots
    if snapshots is not None:
        snapshots = msgspec.structs.replace(snapshots, **_SNAPSHOT_GAUGES)
    adapters = stats.adapters
    if adapters is not None:
        adapters = msgspec.structs.replace(adapters, **_ADAPTER_GAUGES)
    return msgspec.structs.replace(stats, **_GAUGES, snapshots=snapshots, adapters=adapters)


def total_info(infos: Iterable[EngineInfo]) -> EngineInfo:
    """The description of several engines of one model: what they can hold is added up."""
    found = list(infos)
    return msgspec.structs.replace(
        found[0],
        max_model_len=min(info.max_model_len for info in found),
        max_rows=sum(info.max_rows for info in found),
        num_blocks=sum(info.num_blocks for info in found),
    )


def _add(left: Any, right: Any) -> Any:
    """The sum of two of the same type, field by field and place by place."""
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, msgspec.Struct):
        fields = {name: _add(getattr(left, name), getattr(right, name)) for name in _names(left)}
        if isinstance(left, AdapterStats):  # the same adapters may be in several engines
            fields["running"] = tuple(sorted({*left.running, *right.running}))
            fields["waiting"] = tuple(sorted({*left.waiting, *right.waiting}))
        return type(left)(**fields)
    if isinstance(left, tuple):
        return tuple(map(_add, left, right))
    if isinstance(left, dict):
        return {key: _add(left.get(key), right.get(key)) for key in {**left, **right}}
    return left + right


def _names(struct: msgspec.Struct) -> tuple[str, ...]:
    return struct.__struct_fields__
