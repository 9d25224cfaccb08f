"""What trainers send to SGLang's routes. Null means the default, everywhere."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from server.schema.base import BodyModel
from server.schema.fields import Accepted
from server.schema.query import QueryModel


class PauseGenerationBody(BodyModel):
    """How to pause."""

    mode: Literal["abort", "retract", "in_place"] = Field(
        "abort",
        description="`abort` ends requests with what they have; `retract` stops them between two "
        "steps, and they compute their keys again; `in_place` stops them, and they keep their "
        "keys.",
    )


class ContinueGenerationBody(BodyModel):
    """Go on after a pause."""

    torch_empty_cache: Accepted = None


class AbortRequestBody(BodyModel):
    """Which requests to end."""

    rid: str | None = Field(
        None, max_length=1024, description="The id of a reply, or that a client gave."
    )
    abort_all: bool = Field(False, description="End all requests.")
    finished_reason: Accepted = None
    abort_message: Accepted = None


class FlushQuery(QueryModel):
    """How to forget prefixes."""

    timeout: float = Field(
        0.0, ge=0, le=3600, description="Seconds to wait for requests to end before it fails."
    )
