"""Routes whose handlers take the request and return the response, with nothing in between.

Bodies are read, checked and described by `server.http.body` and `server.schema.openapi`, so
FastAPI's dependency solving, and its stacks for what dependencies leave open, would only cost time
on each request.
"""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import Receive, Scope, Send


class PlainRoute(APIRoute):
    """A route that calls its endpoint, `async def (request) -> Response`, directly."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this path."""
        methods = self.methods or ()
        # HEAD is GET whose body the HTTP server leaves out.
        if scope["method"] not in methods and not (scope["method"] == "HEAD" and "GET" in methods):
            await super().handle(scope, receive, send)  # 405
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)
