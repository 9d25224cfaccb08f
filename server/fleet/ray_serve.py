"""A fleet on Ray Serve: replicas of the engine, and servers that send each prompt to one of them.

Placement, health checks, restarts, draining, rolling updates and the number of replicas are Ray
Serve's. What is decided for it here: which replica gets a prompt (`FleetRouter`) and how many
there should be (`scale`).

`serve deploy deploy/fleet.yaml` starts one from `app`, `tailrace deploy` from `application`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import ray
from fastapi import FastAPI
from prometheus_client import disable_created_metrics
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingContext
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import kind_and_line
from engine.logs import configure_logging
from engine.models.weights.folder import model_folder
from server.app import create_app
from server.command.fleet_settings import FleetConfig, FleetOptions, config_of_args
from server.context import Context
from server.fleet.engine import FleetEngine
from server.fleet.identity import model_identity
from server.fleet.messages import ReplicaReport, decode_change, decode_report, encode_message
from server.fleet.prefixes import BLOCK_TOKENS
from server.fleet.replica import Replica
from server.fleet.routing import PrefixRouter
from server.fleet.scaling import wanted_replicas
from server.http.admission import ShutdownError
from server.text.tokenizer import load_tokenizer

logger = logging.getLogger("tailrace")

NAME = "tailrace"
MAX_TRIES = 3
"""How often a request is tried whose replica is lost before its first byte."""
NO_LIMIT = 1 << 20
"""Requests that Ray lets to a replica; the server's own admission holds them back before."""
REPORT_TIMEOUT_S = 5.0
ADAPTER_TIMEOUT_S = 120.0
"""Seconds that a replica may take to read an adapter."""
HEALTH_TIMEOUT_S = 5.0
"""Ray Serve ends a replica that has not answered three times in a row."""
LAST_WORDS_S = 2.0
"""Seconds in which an ingress that ends sends the errors of requests that did not."""
LOGGING = {"enable_access_log": False, "log_level": "WARNING"}
"""Ray Serve's own lines; the server's go by its flags."""


class FleetRouter(RequestRouter):
    """Ray Serve's way to ask which replica gets a request; `PrefixRouter` answers."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Begin without knowledge of what the replicas hold."""
        self._prefixes = PrefixRouter(**kwargs)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Remember as many prefixes as the caches of these replicas have room for."""
        tokens = sum(each.replica_metadata.get("cache_tokens", 0) for each in replicas)
        self._prefixes.resize(tokens // BLOCK_TOKENS)
        super().update_replicas(replicas)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Rank the replicas: the one chosen first, the others where that cannot take it."""
        asked = {} if pending_request is None else pending_request.kwargs
        model = asked.get("model")
        same = [each for each in candidate_replicas if each.replica_metadata.get("model") == model]
        # Where none serves the model, any will do to say so.
        by_name = {each.replica_id.unique_id: each for each in same or candidate_replicas}
        chosen = asked.get("to")
        if chosen not in by_name:
            known = self.replica_queue_len_cache
            loads = {name: known.get(each.replica_id) or 0 for name, each in by_name.items()}
            chosen = self._prefixes.choose(asked.get("hashes", ()), loads).replica
        others = [each for name, each in by_name.items() if name != chosen]
        return [[by_name[chosen]], others]


def scale(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Ray Serve's way to ask how many replicas there should be, by what they report."""
    known = context.aggregated_metrics or {}
    wanted = wanted_replicas(
        known.get("waiting", {}), known.get("running", {}), known.get("rows", {})
    )
    return wanted or context.target_num_replicas, {}


class EngineReplica:
    """An engine process, and this actor as its only frontend."""

    async def __init__(self, config: EngineConfig) -> None:  # type: ignore[misc]  # Ray awaits it
        configure_logging(config.log_level, config.log_format, NAME)
        self._engine = await EngineClient.start(config)
        model = config.model.model
        folder = await asyncio.to_thread(model_folder, model, config.model.revision)
        self._identity = await asyncio.to_thread(model_identity, folder, self._engine.info)
        name = serve.get_replica_context().replica_id.unique_id
        self._replica = Replica(self._engine, name, self._identity, model, self._end)
        self._ending: asyncio.Task[None] | None = None
        self._watching = asyncio.create_task(self._replica.watch())

    async def work(self, raw: bytes, hashes: Sequence[int], model: str) -> AsyncIterator[bytes]:
        """Work at a request as `Replica.work`; the hashes and the model are the router's."""
        async with aclosing(self._replica.work(raw)) as messages:
            async for message in messages:
                yield message

    async def abort(self, key: str, choice: int, to: str) -> None:
        """End choices of a request; `to`, this replica's name, is the router's."""
        self._replica.abort(key, choice)

    async def report(self) -> bytes:
        """The state of the replica."""
        return encode_message(self._replica.report())

    async def follow(self, raw: bytes) -> bytes:
        """Follow a change of an adapter's name."""
        answer = await self._replica.adapters.follow(decode_change(raw))
        return encode_message(answer)

    async def adapter_change(self, name: str, to: str) -> bytes:
        """The last change of an adapter's name; `to`, this replica's name, is the router's."""
        change = self._replica.adapters.change(name)
        return b"" if change is None else encode_message(change)

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell routers what does not change."""
        info = self._engine.info
        return {"model": self._identity, "cache_tokens": info.num_blocks * info.block_size}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell `scale` how long the queue is."""
        stats = self._engine.stats
        waiting, running = (stats.num_waiting, stats.num_running) if stats is not None else (0, 0)
        return {"waiting": waiting, "running": running, "rows": self._engine.info.max_rows}

    def check_health(self) -> None:
        """Raise if the engine cannot serve, so that Ray Serve starts another replica."""
        if (reason := self._engine.failure()) is not None:
            raise RuntimeError(reason)

    async def _end(self, reason: str) -> None:
        """End this process: calls that wait for it fail, and routers send no more."""
        if self._ending is None:
            logger.error("the replica ends: %s", reason)
            self._ending = asyncio.create_task(self._exit())
        await asyncio.shield(self._ending)

    async def _exit(self) -> None:
        await self._engine.close()  # one that hangs would keep its memory
        os._exit(1)

    async def __del__(self) -> None:
        if (watching := getattr(self, "_watching", None)) is not None:
            watching.cancel()
        if (engine := getattr(self, "_engine", None)) is not None:
            await engine.close()


class _RayReplicas:
    """The replicas behind a handle of Ray Serve."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle
        self._work = handle.options(method_name="work", stream=True)
        self._abort = handle.options(method_name="abort")
        self._change = handle.options(method_name="adapter_change")

    async def work(self, raw: bytes, hashes: Sequence[int], model: str) -> AsyncIterator[bytes]:
        response = self._work.remote(raw, hashes=hashes, model=model)
        try:
            async for message in response:
                yield message
        except asyncio.CancelledError:
            response.cancel()
            raise

    def abort(self, replica: str, key: str, choice: int) -> None:
        self._abort.remote(key, choice, to=replica)

    async def reports(self) -> list[ReplicaReport]:
        return [decode_report(raw) for raw in await self._ask_all(REPORT_TIMEOUT_S, "report")]

    async def follow(self, raw: bytes) -> list[bytes]:
        return await self._ask_all(ADAPTER_TIMEOUT_S, "follow", raw)

    async def change(self, replica: str, name: str) -> bytes:
        try:
            found: bytes = await self._change.remote(name, to=replica)
        except (RayError, RayServeException):
            return b""  # the replica has gone
        return found

    async def _ask_all(self, timeout_s: float, method: str, *args: bytes) -> list[bytes]:
        """What all replicas that answer in time say."""
        asked = self._handle.broadcast(method, *args)
        try:
            answers = await asked.results_async(timeout_s=timeout_s, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError):
            return []  # there is no replica at this moment
        return [each for each in answers if isinstance(each, bytes)]


class Ingress:
    """The server's own application over the replicas: it parses, renders and tokenises."""

    def __init__(self, handle: DeploymentHandle, config: FleetConfig) -> None:
        self._handle = handle
        self._config = config

    async def __serve_build_asgi_app__(self) -> FastAPI:
        config = self._config
        os.environ["PYTHONSAFEPATH"] = "1"  # as `tailrace serve` sets it for processes it starts
        disable_created_metrics()  # type: ignore[no-untyped-call]
        configure_logging(config.engine.log_level, config.engine.log_format, NAME)
        tokenizer = await asyncio.to_thread(
            load_tokenizer,
            config.tokenizer,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
        )
        engine = await FleetEngine.start(_RayReplicas(self._handle), config.seed)
        app = create_app(engine, tokenizer, config.http, max_tries=MAX_TRIES)
        self._context: Context = app.state.context
        return app

    async def drain(self) -> None:
        """Refuse new requests and wait for open ones; those that take too long fail."""
        lifecycle = self._context.lifecycle
        if not await lifecycle.drain(self._config.shutdown_timeout_s):
            self._context.fail_all(ShutdownError())
            await lifecycle.drain(LAST_WORDS_S)


def application(config: FleetConfig) -> serve.Application:
    """The fleet as Ray Serve deploys it."""
    options = config.options
    shared: dict[str, Any] = {
        "max_ongoing_requests": NO_LIMIT,
        "graceful_shutdown_timeout_s": config.shutdown_timeout_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "logging_config": LOGGING,
    }
    is_asked = config.engine.model.device == "cuda"  # then Ray waits for GPUs, or starts machines
    has_gpus = is_asked or bool(ray.cluster_resources().get("GPU"))
    engines = (
        serve.deployment(EngineReplica)
        .options(
            **shared,
            **_counts(options),
            health_check_period_s=2.0,
            health_check_timeout_s=HEALTH_TIMEOUT_S,
            ray_actor_options={
                "num_cpus": 1,
                "num_gpus": config.gpus_per_replica if has_gpus else 0,
            },
            request_router_config={
                "request_router_class": FleetRouter,
                "request_router_kwargs": {"max_lead": options.max_lead},
            },
        )
        .bind(config.engine)
    )
    ingress = serve.deployment(serve.ingress()(Ingress))
    return ingress.options(**shared, num_replicas=options.ingresses).bind(engines, config)


def drain(timeout_s: float) -> None:
    """Let the ingresses of the fleet refuse new requests, and wait for open ones to end."""
    try:
        asked = serve.get_app_handle(NAME).broadcast("drain")
        asked.results(timeout_s=timeout_s + 2 * LAST_WORDS_S, return_exceptions=True)
    except (RayError, RayServeException, TimeoutError) as error:  # no ingress, or one that hangs
        logger.warning("open requests are cut: %s", kind_and_line(error))


def _counts(options: FleetOptions) -> dict[str, Any]:
    """How many replicas there are, or between which numbers `scale` may choose."""
    if options.max_replicas is None:
        return {"num_replicas": options.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": options.replicas,
            "max_replicas": options.max_replicas,
            "policy": {"policy_function": "server.fleet.ray_serve:scale"},
            "metrics_interval_s": options.scale_interval_s,
            "look_back_period_s": 2 * options.scale_interval_s,
            "upscale_delay_s": options.upscale_delay_s,
            "downscale_delay_s": options.downscale_delay_s,
        }
    }


def app(args: dict[str, Any]) -> serve.Application:
    """The application of a file for `serve deploy`, by settings of a server and `FleetOptions`.

    `restart` may have any value: another one restarts all replicas, one after another.
    """
    config = config_of_args(args)
    if not ray.is_initialized():
        ray.init(namespace="serve")  # `serve run` asks for the application before it connects
    return application(config)
