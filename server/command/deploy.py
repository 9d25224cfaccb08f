"""`tailrace deploy`: a fleet on this machine, by Ray Serve."""

from __future__ import annotations

import argparse
import logging
import os
import re
import secrets
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from engine.config import ConfigError
from server.command.fleet_settings import FleetConfig, FleetOptions, check_gpus, fleet_config
from server.command.listen import bind
from server.command.logs import configure_server_logging
from server.command.parser import add_settings
from server.command.settings import Settings, flag_of

if TYPE_CHECKING:
    from types import ModuleType

logger = logging.getLogger("tailrace")

OBJECT_STORE_BYTES = 256 << 20
"""Memory that Ray sets aside for large objects, which a fleet does not send."""
_HELP = {
    "replicas": "Engines, each with a GPU of its own where there are any.",
    "max_replicas": "Start up to so many engines while requests wait, and end them again.",
    "ingresses": "Processes that answer HTTP.",
    "max_lead": "Requests that an engine may have more than the least loaded one and still get "
    "prompts whose beginning it has cached.",
    "upscale_delay_s": "Seconds for which more engines must be wanted before one is started.",
    "downscale_delay_s": "Seconds for which fewer must be wanted before one is ended.",
}
_COUNTS = ("replicas", "max_replicas", "ingresses", "max_lead")


def add_deploy(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `serve`, and those of a fleet."""
    add_settings(parser)
    group = parser.add_argument_group("the fleet")
    for name, words in _HELP.items():
        kind, metavar = (int, "N") if name in _COUNTS else (float, "SECONDS")
        flag = flag_of(name.removesuffix("_s"))
        group.add_argument(
            flag, dest=name, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=words
        )


def fleet_options(given: dict[str, Any]) -> FleetOptions:
    """Take the options of a fleet out of the flags that were given; raises `ConfigError`."""
    own = {name: given.pop(name) for name in _HELP if name in given}
    for name, value in own.items():
        if name in _COUNTS and not 1 <= value <= 1000:
            raise ConfigError(f"{flag_of(name)} must be 1 to 1000, got {value}")
        if not value >= 0:
            raise ConfigError(f"{flag_of(name.removesuffix('_s'))} must be at least 0, got {value}")
    return FleetOptions(**own)


def deploy(settings: Settings, options: FleetOptions) -> int:
    """Run a fleet until a signal; raises `ConfigError` before that."""
    configure_server_logging(settings)
    config = fleet_config(settings, options)
    fleet = _import_fleet()
    bind(settings).close()  # a port that is taken is reported before anything slow starts
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    import ray

    _start_ray(config)
    try:
        check_gpus(config, int(ray.cluster_resources().get("GPU", 0)))
        _run(fleet, config, settings)
        while signal.sigwait(signals) == signal.SIGHUP:
            logger.info("restarting all replicas, one after another")
            _run(fleet, config, settings)
        logger.info("shutting down: at most %g s for open requests", config.shutdown_timeout_s)
        fleet.drain(config.shutdown_timeout_s)
        fleet.serve.shutdown()  # which ends what listens before what it waits for
    finally:
        ray.shutdown()
    return 0


def ray_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables by which Ray, as it is imported, learns how to behave; those set stay.

    Its processes know each other by a token. Ray would keep one in the home folder, where other
    clusters of this user find it from then on.
    """
    wanted = {"RAY_USAGE_STATS_ENABLED": "0"}
    if not any(name.startswith("RAY_AUTH_") for name in environ):
        wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {name: value for name, value in wanted.items() if name not in environ}


def _import_fleet() -> ModuleType:
    """The application, which imports Ray; raises `ConfigError` where that is missing."""
    if find_spec("ray") is None:
        raise ConfigError("`tailrace deploy` needs Ray Serve: pip install 'tailrace[ray]'")
    os.environ.update(ray_variables(os.environ))
    try:
        from server.fleet import ray_serve
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`tailrace deploy` needs Ray Serve: pip install 'tailrace[ray]' ({error})"
        ) from None
    return ray_serve


def _start_ray(config: FleetConfig) -> None:
    """Start Ray on this machine alone. Its CPUs are places of processes, not cores."""
    import ray

    options = config.options
    most = options.max_replicas or options.replicas
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, 2 * (most + options.ingresses) + 2),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=True,
    )


def _run(fleet: ModuleType, config: FleetConfig, settings: Settings) -> None:
    """Deploy the application, anew where it runs already; returns once it answers."""
    listen = {"host": settings.host, "port": settings.port}
    fleet.serve.start(http_options=listen, logging_config=fleet.LOGGING)
    try:
        fleet.serve.run(fleet.application(config), name=fleet.NAME, logging_config=fleet.LOGGING)
    except RuntimeError as error:
        raise ConfigError(f"the fleet did not start: {_reason(fleet, error)}") from None
    options = config.options
    logger.info(
        "%d replicas of %s behind http://%s:%d/v1",
        *(options.replicas, config.http.model_names[0], settings.host, settings.port),
    )


def _reason(fleet: ModuleType, error: RuntimeError) -> str:
    """What kept the fleet from starting: the last error that Ray Serve notes of a deployment."""
    found = fleet.serve.status().applications.get(fleet.NAME)
    messages = [] if found is None else [each.message for each in found.deployments.values()]
    errors = re.findall(r"^[\w.]+Error: (.+)$", "\n".join(messages), flags=re.MULTILINE)
    return errors[-1] if errors else str(error)
