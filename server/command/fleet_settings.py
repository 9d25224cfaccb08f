"""The configuration of a fleet, made of the settings of a server and options of its own."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta, structs

from engine.config import ConfigError, EngineConfig
from server.command.configure import engine_config, server_config
from server.command.models import check_models
from server.command.settings import Settings, flag_of, load_settings, nearest
from server.config import ServerConfig
from server.fleet.routing import MAX_LEAD

_MEANINGLESS = (
    *("uds", "api_server_count", "header_timeout", "root_path", "page_verify"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs"),
)
"""Settings of a server that listens itself; a fleet listens by Ray Serve's proxy."""

_Count = Annotated[int, Meta(ge=1, le=1000)]
_Seconds = Annotated[float, Meta(ge=0)]


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a fleet has beyond one server.

    Attributes:
        replicas: engines; with `max_replicas` the least there are.
        max_replicas: the most there are; None for always `replicas`.
        ingresses: processes that answer HTTP.
        max_lead: requests that a replica may have more than the least loaded one and still get
            prompts whose first blocks it holds.
        scale_interval_s: seconds between two reports of how long the queues are.
        upscale_delay_s, downscale_delay_s: how long more or fewer replicas must be wanted.
    """

    replicas: _Count = 1
    max_replicas: _Count | None = None
    ingresses: _Count = 1
    max_lead: _Count = MAX_LEAD
    scale_interval_s: Annotated[float, Meta(gt=0)] = 5.0
    upscale_delay_s: _Seconds = 15.0
    downscale_delay_s: _Seconds = 300.0


class FleetConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the processes of a fleet need to know.

    Attributes:
        tokenizer: folder or hub id of the tokenizer.
        revision: its branch, tag or commit; None for the default.
        seed: begins the sequence of seeds of requests that name none.
        gpus_per_replica: where the cluster has GPUs.
        shutdown_timeout_s: how long open requests may take once a process is to end.
    """

    engine: EngineConfig
    http: ServerConfig
    options: FleetOptions
    tokenizer: str
    revision: str | None
    trust_remote_code: bool
    seed: int | None
    gpus_per_replica: int
    shutdown_timeout_s: float


def fleet_config(settings: Settings, options: FleetOptions) -> FleetConfig:
    """The configuration of a fleet; raises `ConfigError`."""
    _check(settings, options)
    config = engine_config(settings)
    check_models(config, settings.tokenizer)
    http = server_config(settings, config)
    if options.ingresses > 1 and not (http.response_store and http.response_store.path):
        http = structs.replace(http, response_store=None)  # they share no file
    # Seeds are drawn where requests arrive, in one sequence. Times of engines on other machines
    # mean nothing here. Ray Serve sends X-Request-Id in any case.
    sampling = structs.replace(config.sampling, seed=None)
    own = settings.tokenizer is None
    return FleetConfig(
        engine=structs.replace(config, sampling=sampling, report_times=False),
        http=structs.replace(http, created=int(time.time()), request_id_headers=False),
        options=options,
        tokenizer=settings.tokenizer or config.model.model,
        revision=config.model.revision if own else None,
        trust_remote_code=settings.trust_remote_code,
        seed=settings.seed,
        gpus_per_replica=0 if settings.device == "cpu" else settings.tensor_parallel_size,
        shutdown_timeout_s=settings.shutdown_timeout,
    )


def config_of_args(args: dict[str, Any]) -> FleetConfig:
    """The configuration of a fleet by the `args` of a file for `serve deploy`.

    Args:
        args: settings of a server and `FleetOptions`, by name. `restart` may have any value.

    Raises:
        ConfigError: an argument that is unknown, or breaks its limit.
    """
    names = set(FleetOptions.__struct_fields__)
    try:
        own = {key: value for key, value in args.items() if key in names}
        options = msgspec.convert(own, FleetOptions, strict=False)  # `serve run` gives text
    except msgspec.ValidationError as error:
        raise ConfigError(f"args of the fleet: {error}") from None
    given = {key: value for key, value in args.items() if key not in names | {"restart"}}
    for name in given:
        if name in ("host", "port"):
            raise ConfigError(f"args of the fleet: {name} belongs into http_options of the file")
        if name not in Settings.model_fields:
            hint = nearest(name, names | Settings.model_fields.keys())
            raise ConfigError(f"args of the fleet: {name} is no setting{hint}")
    settings = load_settings(given)
    config = fleet_config(settings, options)
    # Where Ray Serve listens is not known here, so neither are the names of the machine.
    http = structs.replace(config.http, allowed_hosts=tuple(settings.allowed_hosts))
    return structs.replace(config, http=http)


def check_gpus(config: FleetConfig, num_gpus: int) -> None:
    """Raise `ConfigError` where a machine with so many GPUs has too few for a fleet.

    Ray would wait for more without an end. Where there are none, engines run on the CPU unless
    `--device cuda` is given.
    """
    if num_gpus == 0 and config.engine.model.device != "cuda":
        return
    options, each = config.options, config.gpus_per_replica
    most = options.max_replicas or options.replicas
    if most * each > num_gpus:
        raise ConfigError(
            f"{most} replicas with {each} GPUs each need {most * each}, and there are {num_gpus}: "
            "lower --replicas, --max-replicas or --tensor-parallel-size"
        )


def _check(settings: Settings, options: FleetOptions) -> None:
    for name in _MEANINGLESS:
        if name in settings.model_fields_set:
            raise ConfigError(
                f"{flag_of(name)} means nothing for a fleet, which listens by Ray Serve's proxy: "
                "leave it out, or use `tailrace serve`"
            )
    if settings.enable_weight_updates:
        raise ConfigError(
            "--enable-weight-updates steers one engine, and a fleet has several: "
            "use `tailrace serve` for each"
        )
    if options.max_replicas is not None and options.max_replicas < options.replicas:
        raise ConfigError(
            f"--max-replicas must be at least --replicas ({options.replicas}), "
            f"got {options.max_replicas}"
        )
