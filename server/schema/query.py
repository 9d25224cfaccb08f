"""Parameters of a URL's query as types, checked as bodies are."""

from __future__ import annotations

from typing import Any, TypeVar, get_origin

from pydantic import ConfigDict
from starlette.datastructures import QueryParams

from server.schema.base import BodyModel, validate


class QueryModel(BodyModel):
    """Parameters of a query. They are texts, which are read as numbers and booleans."""

    model_config = ConfigDict(strict=False)


Query = TypeVar("Query", bound=QueryModel)


def read_query(kind: type[Query], params: QueryParams) -> Query:
    """The parameters of a query as `kind`; raises `ApiError` for unknown names and bad values.

    A field that is a list takes each value of its name, any other the last.
    """
    fields = kind.model_fields
    values: dict[str, Any] = dict(params)
    for name in values:
        if name in fields and get_origin(fields[name].annotation) is list:
            values[name] = params.getlist(name)
    return validate(kind, values)
