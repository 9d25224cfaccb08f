"""Routes whose handlers take the request and return the response, and nothing in between.

Bodies are read, checked and described by us (`server.body`, `server.openapi`), so FastAPI's
dependency solving would only cost time on each request.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response


class PlainRoute(APIRoute):
    """Calls the endpoint as it is."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The endpoint: `async def (request) -> Response`."""
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint
