"""What trainers send to vLLM's routes. Null means the default, everywhere."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.contracts.control import MemoryPart, PauseMode
from server.schema.base import BodyModel
from server.schema.query import QueryModel

MAX_ABORTED = 65536


class PauseQuery(QueryModel):
    """How to pause."""

    mode: PauseMode = Field(
        "abort",
        description="What becomes of requests: `abort` ends them with what they have, `wait` lets "
        "them end, `keep` stops them between two steps, to go on at `/resume`.",
    )
    clear_cache: bool = Field(
        True,
        description="All prefixes are forgotten, and what goes on computes its keys again. With "
        "false what goes on keeps its keys.",
    )
    new_requests: Literal["refuse", "queue"] | None = Field(
        None,
        description="What becomes of requests that come meanwhile: a 503, or they wait. By "
        "default they wait with `keep` and are refused otherwise.",
    )


class WorldSizeQuery(QueryModel):
    """What to count."""

    include_dp: bool = Field(True, description="This has no effect: there is one engine.")


class AbortBody(BodyModel):
    """Which requests to end."""

    request_ids: list[str] | None = Field(
        None,
        max_length=MAX_ABORTED,
        description="Ids of replies, or the `request_id` that a client gave; all requests where "
        "there are none.",
    )


class ResetQuery(QueryModel):
    """How to forget prefixes."""

    reset_running_requests: bool = Field(
        False,
        description="Running requests compute their keys again; else nothing is forgotten while "
        "any run.",
    )
    reset_external: bool = Field(False, description="This has no effect: there is no other cache.")


class ResetBody(BodyModel):
    """The same in a body."""

    reset_running_requests: bool = False


class SleepQuery(QueryModel):
    """How to sleep."""

    level: int = Field(
        1,
        ge=0,
        le=2,
        description="0 pauses alone; 1 gives memory back and keeps the weights on the host; 2 lets "
        "them go, and all of them must be written again by an update.",
    )
    tags: list[MemoryPart] = Field([], description="Parts of the memory; all where none is named.")
    mode: PauseMode = Field("abort", description="What becomes of requests, as in `/pause`.")
    new_requests: Literal["refuse", "queue"] = Field(
        "refuse", description="What becomes of requests that come meanwhile, as in `/pause`."
    )


class WakeQuery(QueryModel):
    """What to wake."""

    tags: list[MemoryPart] = Field([], description="Parts of the memory; all where none is named.")
