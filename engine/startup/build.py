"""Builds an engine from its configuration: device, model, rows, sampler, cache, runner."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import torch
from msgspec import structs

from engine.adapters.stacks import AdapterStacks
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.contracts.adapters import AdapterReader
from engine.contracts.info import EngineInfo
from engine.contracts.model import CausalLM
from engine.contracts.runner import StartingRunner
from engine.engine import Engine
from engine.errors import first_line
from engine.kernels.invariant.product import use_uncut_products
from engine.memory.sleeping import FixedMemory, SleepingMemory
from engine.models.expected import eos_token_ids, max_position
from engine.models.loader import load_model
from engine.models.reference import Reference
from engine.models.refusals import fp8_lack
from engine.parallel.lead import LeadReader, LeadRunner
from engine.planning.drafting import draft_rules
from engine.progress import phase
from engine.runner.model_runner import ModelRunner
from engine.startup.built_runner import BuiltRunner, build_runner
from engine.startup.device import make_sleeping, resolve_device
from engine.startup.error_statement import ErrorMeasure
from engine.startup.fingerprint import Fingerprint
from engine.startup.kernels import begin_compiling, begin_loading
from engine.startup.parts import BuildParts, EngineParts
from engine.startup.ranks import Ranks, set_threads, start_ranks
from engine.startup.rehearsal import rehearse
from engine.startup.samplers import most_drawn
from engine.startup.sizes import check_context
from engine.structured.grammars import Grammars
from engine.structured.tokenizer import TokenizerError, TokenizerReader
from sampling.device.compiling import Compilation, on_compilation
from sampling.device.ranks import RankExchange

logger = logging.getLogger(__name__)


def build_engine(
    config: EngineConfig,
    on_rank_lost: Callable[[str], None] = lambda reason: None,
    tokenizer: TokenizerReader | None = None,
    ranks: Ranks | None = None,
) -> Engine:
    """Load the model and assemble an engine that is ready to step.

    Args:
        on_rank_lost: called on another thread, with the reason, when another rank is lost. The
            engine cannot go on then.
        tokenizer: that of `config.structured`, if it is on its way already.
        ranks: the other ranks, if they have been started.

    Raises:
        ConfigError: a setting that does not fit, with the numbers.
        ModelError: a model folder that cannot be served.
    """
    if tokenizer is None and config.structured is not None:
        tokenizer = TokenizerReader(config.structured)
    config = _settled(config)
    device = _prepare(config)
    if config.tensor_parallel_size == 1:
        begun, measure = begin_compiling(config, device), ErrorMeasure(config, tokenizer)
        memory = make_sleeping(config, device)
        model, adapters = load(config, device, reference=measure.reference, memory=memory)
        parts = assemble(
            config,
            model,
            device,
            tokenizer=tokenizer,
            measure=measure,
            begun=begun,
            fingerprint=Fingerprint(config, device),
            adapters=adapters,
            memory=memory,
        )
        return parts.engine()
    others, exchange = ranks or start_ranks(config, device, on_rank_lost)
    measure, memory = ErrorMeasure(config, tokenizer, exchange), make_sleeping(config, device)
    model, adapters = load(config, device, exchange, measure.reference, memory)
    return assemble(
        config,
        model,
        device,
        lambda runner: LeadRunner(runner, runner.mask_buffer, others),
        tokenizer,
        exchange,
        measure,
        fingerprint=Fingerprint(config, device),
        adapters=adapters,
        lead_reader=lambda reader: LeadReader(reader, others),
        memory=memory,
    ).engine()


def invariant_parts(config: EngineConfig) -> BuildParts:
    """Load a model once; the function makes parts of configurations that differ in other things."""
    device = _prepare(_settled(config))
    model, adapters = load(config, device)

    def build(
        config: EngineConfig, watch: Callable[[CausalLM], CausalLM] | None = None
    ) -> EngineParts:
        watched = model if watch is None else watch(model)
        return assemble(_settled(config), watched, device, adapters=adapters)

    return build


def build_rank(config: EngineConfig, exchange: RankExchange) -> ModelRunner:
    """Build the runner of a rank other than 0; raises as `build_engine`."""
    config = _settled(config)
    device = _prepare(config)
    measure, memory = ErrorMeasure(config, None, exchange), make_sleeping(config, device)
    model, adapters = load(config, device, exchange, measure.reference, memory)
    config = _on_device(config, device)
    runner = build_runner(
        config, model, device, exchange, measure, adapters=adapters, memory=memory
    ).runner
    _freeze()
    return runner


def _settled(config: EngineConfig) -> EngineConfig:
    """The configuration without what `--batch-invariant` excludes: draws of one seed a step."""
    if not config.model.batch_invariant:
        return config
    return structs.replace(config, sampling=structs.replace(config.sampling, flashinfer="never"))


def _prepare(config: EngineConfig) -> torch.device:
    """Settle threads and the device, and check what can be checked before minutes of loading."""
    set_threads(config)
    device = resolve_device(config.model)
    if config.cache.dtype == "fp8" and (lack := fp8_lack(device)):
        raise ConfigError(f"--kv-cache-dtype fp8 {lack}; leave it out")
    if config.model.max_model_len is not None:
        check_context(config.model.max_model_len, max_position(config.model))
    if config.model.batch_invariant and device.type == "cuda":
        use_uncut_products()
    begin_loading(config, device)
    return device


def _on_device(config: EngineConfig, device: torch.device) -> EngineConfig:
    """The configuration with the defaults of the device, the same on every rank."""
    if device.type != "cuda":
        return config
    return structs.replace(config, scheduler=config.scheduler.on_gpu())


def load(
    config: EngineConfig,
    device: torch.device,
    exchange: RankExchange | None = None,
    reference: Reference | None = None,
    memory: SleepingMemory | None = None,
) -> tuple[CausalLM, AdapterStacks | None]:
    """Load the model, and slots for adapters beside its products where these are served."""
    wanted, adapters = config.adapters, None
    if wanted is not None:
        adapters = AdapterStacks(wanted.max_loras, wanted.max_rank, wanted.target_modules)
    memory = memory or FixedMemory()
    try:
        with phase("loading weights"), memory.making("weights"):
            model = load_model(config.model, device, exchange, reference, adapters)
    except torch.OutOfMemoryError as error:
        flags = "--max-loras, --max-lora-rank, --lora-target-modules"
        slots = "" if wanted is None else f" and adapters' slots ({flags})"
        raise ConfigError(
            f"the model's weights{slots} do not fit on the GPU: {first_line(error)}"
        ) from error
    memory.note("weights", model.named_weights().written())
    if adapters is not None:
        size = adapters.num_bytes / (1 << 30)
        words = "%d slots of adapters take %.2f GiB; --lora-target-modules leaves modules out"
        logger.info(words, adapters.num_slots, size)
    return model, adapters


def assemble(
    config: EngineConfig,
    model: CausalLM,
    device: torch.device,
    wrap: Callable[[ModelRunner], StartingRunner] = lambda runner: runner,
    tokenizer: TokenizerReader | None = None,
    exchange: RankExchange | None = None,
    measure: ErrorMeasure | None = None,
    begun: Compilation | None = None,
    fingerprint: Fingerprint | None = None,
    adapters: AdapterStacks | None = None,
    lead_reader: Callable[[AdapterReader], AdapterReader] = lambda reader: reader,
    memory: SleepingMemory | None = None,
) -> EngineParts:
    """Build what an engine around a loaded model is made of; raises `ConfigError`.

    Args:
        wrap: turns the runner into the one that the engine is to use.
        tokenizer: that of `config.structured`, on its way; None serves no grammars.
        exchange: the ranks of which this is the first, each with its part of the model.
        measure: of the model's error, begun while it was loaded; None states none.
        begun: as `begin_compiling` gave it, of the same configuration.
        fingerprint: of the engine, on its way; None for a model that no folder holds.
        adapters: slots beside the model's products; None where none are served.
        lead_reader: turns the runner's reader of adapters into the one that the engine is to use.
        memory: in which the model's weights are; None where it is never given back.
    """
    config = _on_device(config, device)
    built = build_runner(config, model, device, exchange, measure, begun, adapters, memory)
    runner, max_model_len = built.runner, built.size.max_model_len
    if not config.scheduler.chunked_prefill and config.scheduler.step_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill --max-num-batched-tokens must be at least the context length "
            f"({max_model_len}), got {config.scheduler.step_tokens}"
        )
    eos_token_ids = _stop_ids(config.model, model.vocab_size)
    grammars, grammar_error = _grammars(config, tokenizer, runner, model.vocab_size, eos_token_ids)
    info = _info(config, model, device, built, eos_token_ids, grammar_error, fingerprint)
    serving, drafting = wrap(runner), draft_rules(config.speculation, built.costs)
    rehearse(config, info, serving, drafting)
    _freeze()
    on_compilation(lambda name: logger.warning("kernel %s was compiled inside a request", name))
    reader = None if runner.adapters is None else lead_reader(runner.adapters.store)
    return EngineParts(config, info, serving, drafting, grammars, reader)


def _info(
    config: EngineConfig,
    model: CausalLM,
    device: torch.device,
    built: BuiltRunner,
    eos_token_ids: tuple[int, ...],
    grammar_error: str | None,
    fingerprint: Fingerprint | None,
) -> EngineInfo:
    return EngineInfo(
        vocab_size=model.vocab_size,
        max_model_len=built.size.max_model_len,
        eos_token_ids=eos_token_ids,
        max_rows=config.scheduler.max_rows,
        num_blocks=built.size.num_blocks,
        num_snapshots=built.size.num_snapshots,
        snapshot_multiple=built.snapshot_multiple,
        bytes_per_snapshot=built.bytes_per_snapshot,
        block_size=config.cache.block_size,
        cache_dtype=config.cache.dtype,
        dtype=str(model.dtype).removeprefix("torch."),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        sampler=built.sampler,
        grammar_error=grammar_error,
        quantization=built.statement,
        num_ranks=config.tensor_parallel_size,
        num_routed=None if model.routes is None else model.routes.num_experts,
        max_drawn_top=most_drawn(config.sampling, device, config.tensor_parallel_size),
        fingerprint="" if fingerprint is None else fingerprint.result(),
    )


def _freeze() -> None:
    """Keep collections of garbage short: what was loaded lives as long as the process."""
    gc.collect()
    gc.freeze()


def _grammars(
    config: EngineConfig,
    reader: TokenizerReader | None,
    runner: ModelRunner,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
) -> tuple[Grammars | None, str | None]:
    """What holds choices to grammars or, where nothing can, the reason."""
    if config.structured is None or reader is None:
        return None, "the engine was started without them"
    speculation = config.speculation
    if speculation is not None and speculation.rejection_sample_method == "synthetic":
        return None, "synthetic acceptance of drafts would keep those that a grammar forbids"
    try:
        with phase("reading the tokenizer"):
            tokenizer = reader.result(vocab_size, eos_token_ids)
    except TokenizerError as error:
        logger.warning("requests with a grammar will be refused: %s", error)
        return None, str(error)
    num_drafts = draft_rules(config.speculation).num_tokens
    max_rows, buffer = config.scheduler.max_rows, runner.mask_buffer
    return Grammars(config.structured, tokenizer, buffer, max_rows, num_drafts), None


def _stop_ids(config: ModelConfig, vocab_size: int) -> tuple[int, ...]:
    """The model's end-of-sequence ids, without those that no token of it has."""
    found = eos_token_ids(config)
    if outside := [token_id for token_id in found if not 0 <= token_id < vocab_size]:
        logger.warning(
            "the model's config names end-of-sequence ids %s outside its vocabulary of %d: they "
            "are ignored",
            outside,
            vocab_size,
        )
    return tuple(token_id for token_id in found if token_id not in outside)
