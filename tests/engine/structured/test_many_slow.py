"""Many constrained requests under speculation: no matcher fails, all end by their end or length.

`TAILRACE_CONSTRAINED_REQUESTS` says how many, 1000 where it is not set.
"""

from __future__ import annotations

import os
import random

import pytest

from engine.messages.step_output import Finish
from tests.engine.structured.constrained import (
    EAGLE,
    NGRAM,
    PROMPTS,
    SCHEMAS,
    Reader,
    check_json,
    make,
    of_schema,
    request,
)

pytestmark = pytest.mark.slow

NUM_REQUESTS = int(os.environ.get("TAILRACE_CONSTRAINED_REQUESTS", "1000"))
SPECULATIONS = {"ngram": NGRAM} | {f"eagle {k}": v for k, v in EAGLE.items()}


@pytest.mark.timeout(NUM_REQUESTS * 3)
@pytest.mark.parametrize("speculation", SPECULATIONS)
def test_no_request_fails(speculation: str) -> None:
    engine = make(max_rows=48, max_step_tokens=512, speculation=SPECULATIONS[speculation])
    rng = random.Random(1)
    count = NUM_REQUESTS // len(SPECULATIONS)
    schemas = [rng.choice([*SCHEMAS]) for _ in range(count)]
    reader = Reader(engine)
    reader.run(
        *(
            request(
                handle,
                of_schema(schema),
                rng.choice(PROMPTS),
                temperature=rng.choice([0.5, 1.0, 1.5]),
                seed=handle,
                max_tokens=60,
                emit_interval=16,
            )
            for handle, schema in enumerate(schemas)
        )
    )
    assert len(reader.finish) == count
    assert set(reader.finish.values()) <= {Finish.STOP, Finish.LENGTH}
    finished = sum(
        check_json(reader, handle, SCHEMAS[schema]) for handle, schema in enumerate(schemas)
    )
    assert finished > 0.7 * count
    stats = engine.stats()
    assert stats.grammars is not None
    assert stats.grammars.num_errors == stats.empty_rows == stats.nan_rows == 0
