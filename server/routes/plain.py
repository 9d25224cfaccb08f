"""Routes whose handlers take the request and return the response, and nothing in between.

Bodies are read, checked and described by us (`server.http.body`, `server.schema.openapi`), so
FastAPI's dependency solving and its stacks for what dependencies leave open would only cost time on
each request.
"""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Receive, Scope, Send


class PlainRoute(APIRoute):
    """Calls the endpoint, `async def (request) -> Response`, as it is."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this path."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # 405
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
