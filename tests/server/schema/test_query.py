"""Parameters of a query as types."""

from __future__ import annotations

import pytest
from pydantic import Field
from starlette.datastructures import QueryParams

from server.errors import ApiError
from server.schema.query import QueryModel, read_query


class Wanted(QueryModel):
    level: int = Field(1, ge=0, le=2)
    tags: list[str] = Field([])


def test_values_are_read_by_their_types() -> None:
    found = read_query(Wanted, QueryParams("level=2&tags=a&tags=b"))
    assert (found.level, found.tags) == (2, ["a", "b"])
    assert read_query(Wanted, QueryParams("")) == Wanted(level=1, tags=[])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("level=3", "level must be at most 2"),
        ("level=x", "level is not valid"),
        ("levels=1", "unknown field 'levels' (did you mean 'level'?)"),
    ],
)
def test_bad_values_are_named(query: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_query(Wanted, QueryParams(query))
    assert words in caught.value.message
