"""The HTTP application over an engine: routes, errors, and what every request passes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from engine.client import EngineHandle
from server.config import ServerConfig
from server.context import Context, make_context
from server.endpoints import docs, health, invocations, page, server_info, verify
from server.endpoints.adapters import route as adapters
from server.endpoints.chat import render_route as render_chat
from server.endpoints.chat import route as chat
from server.endpoints.completions import route as completions
from server.endpoints.decisions import route as decisions
from server.endpoints.embeddings import route as embeddings
from server.endpoints.generate_tokens import route as generate_tokens
from server.endpoints.generate_tokens import skyrl as skyrl_generate
from server.endpoints.messages import route as messages
from server.endpoints.models import route as models
from server.endpoints.rerank import route as rerank
from server.endpoints.responses import route as responses
from server.endpoints.responses import stored
from server.endpoints.rollout import prime_rl as rollout_prime_rl
from server.endpoints.rollout import route as rollout
from server.endpoints.rollout import skyrl as rollout_skyrl
from server.endpoints.rollout import sleep as rollout_sleep
from server.endpoints.rollout import weights as rollout_weights
from server.endpoints.scoring import route as scoring
from server.endpoints.sglang import route as sglang
from server.endpoints.sglang import weights as sglang_weights
from server.endpoints.sglang_generate import route as sglang_generate
from server.endpoints.systemone import route as systemone
from server.endpoints.tokens import route as tokens
from server.errors import CLIENT_GONE, ApiError, bad_request
from server.fleet.retries import Retries
from server.fronts import FrontTable
from server.http.access_log import AccessLog
from server.http.account import account_of, route_path
from server.http.auth import Gate
from server.http.disconnect import ClientGoneError
from server.http.origins import Origins
from server.http.outcomes import Accounts
from server.schema.base import field_path
from server.schema.openapi import add_openapi
from server.text.tokenizer import Tokenizer
from server.version import VERSION

_STEERING = (
    *(rollout, rollout_weights, rollout_sleep, rollout_prime_rl, rollout_skyrl),
    *(sglang, sglang_weights),
)
"""Routes by which trainers steer the engine."""
_DESCRIPTION = "An OpenAI-compatible inference server whose sampler is exact to the tail."


class _App(FastAPI):
    """FastAPI without its own middleware: `Accounts` and `PlainRoute` do what is needed of it."""

    __call__ = Starlette.__call__  # without its telemetry

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = ExceptionMiddleware(self.router, self.exception_handlers)
        for middleware in reversed(self.user_middleware):
            app = middleware.cls(app, *middleware.args, **middleware.kwargs)
        return app


def create_app(
    engine: EngineHandle,
    tokenizer: Tokenizer,
    config: ServerConfig,
    fronts: FrontTable | None = None,
    *,
    max_tries: int = 1,
) -> FastAPI:
    """Make the application. Whoever started the engine closes it.

    Args:
        fronts: what this front shares with others; None where there are no others.
        max_tries: how often a request is tried that loses its replica before it is answered.
    """
    context = make_context(engine, tokenizer, config, fronts or FrontTable())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for source in context.template.sources():
            await context.parsers.learn(source, context.template.formats)
        yield
        context.close()
        if context.traces is not None:
            await asyncio.to_thread(context.traces.close)

    app = _App(
        title="tailrace",
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    # `include_router` would wrap each route. They are looked through in this order.
    modules = (
        *(
            completions,
            chat,
            render_chat,
            responses,
            stored,
            messages,
            generate_tokens,
            skyrl_generate,
            sglang_generate,
            scoring,
            decisions,
            systemone,
            rerank,
            embeddings,
            invocations,
            models,
            tokens,
            health,
        ),
        *(server_info, verify, docs, page),
        *(_STEERING if config.weight_updates else ()),
        *((adapters,) if config.enable_lora else ()),
    )
    app.router.routes[:0] = [route for each in modules for route in each.router.routes]
    _add_error_replies(app)
    add_openapi(app, engine.info.vocab_size)
    _add_middleware(app, context, max_tries)
    return app


def _add_middleware(app: FastAPI, context: Context, max_tries: int) -> None:
    """Add the middleware, of which the last added is the outermost."""
    config = context.config
    if max_tries > 1:
        app.add_middleware(Retries, max_tries=max_tries)
    app.add_middleware(
        Gate,
        lifecycle=context.lifecycle,
        connections=context.connections,
        origins=Origins(config.allowed_hosts, config.allowed_origins),
        api_keys=config.api_keys,
        open_metrics=config.open_metrics,
    )
    app.add_middleware(
        Accounts,
        metrics=context.metrics,
        access_log=AccessLog(enabled=config.access_log, hidden_paths=config.access_log_hidden),
        lifecycle=context.lifecycle,
        echo_request_id=config.request_id_headers,
        traces=context.traces,
    )
    if config.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )


def _add_error_replies(app: FastAPI) -> None:
    """Reply to every error in the shape that the path's clients read."""

    def refuse(request: Request, error: ApiError) -> Response:
        account = account_of(request.scope)
        account.reason, account.code = error.message, error.code
        return error.response(route_path(request.scope))

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return refuse(request, error)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        words = f"{error.detail}: {request.method} {request.url.path}"
        headers = dict(error.headers) if error.headers else None
        return refuse(request, ApiError(error.status_code, words, headers=headers))

    @app.exception_handler(RequestValidationError)
    async def on_bad_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return refuse(request, bad_request(field_path(tuple(first["loc"])), str(first["msg"])))

    @app.exception_handler(ClientGoneError)
    async def on_client_gone(request: Request, error: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_GONE)
