"""Builds an engine from its configuration: device, model, rows, sampler, cache, runner."""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from msgspec import structs

from engine.adapters.stacks import AdapterStacks
from engine.batch import RequestRows
from engine.config import ConfigError, EngineConfig, ModelConfig
from engine.contracts.adapters import AdapterReader
from engine.contracts.info import EngineInfo, ErrorStatement
from engine.contracts.model import CausalLM
from engine.contracts.runner import StartingRunner, StepCosts
from engine.engine import Engine
from engine.errors import first_line
from engine.kernels.invariant.product import use_uncut_products
from engine.memory.recent_outputs import RecentOutputs
from engine.memory.sleeping import FixedMemory, SleepingMemory
from engine.memory.states import bytes_per_slot, snapshot_multiple
from engine.models.kv_scales import stored_kv_scales
from engine.models.loader import eos_token_ids, fp8_lack, load_model, max_position
from engine.models.reference import Reference
from engine.parallel.lead import LeadReader, LeadRunner
from engine.planning.drafting import draft_rules
from engine.progress import phase, report
from engine.runner.adapters import RunnerAdapters
from engine.runner.model_runner import ModelRunner
from engine.runner.speculation import Speculation
from engine.speculation.make_drafter import make_drafter
from engine.startup.assembly import Assembly, make_attention, step_buffers
from engine.startup.device import resolve_device
from engine.startup.error_statement import ErrorMeasure
from engine.startup.fingerprint import Fingerprint
from engine.startup.kernels import begin_compiling, begin_loading, wait_for_kernels
from engine.startup.kv_scales import kv_scales
from engine.startup.parts import BuildParts, EngineParts
from engine.startup.ranks import Ranks, set_threads, start_ranks
from engine.startup.rehearsal import rehearse
from engine.startup.samplers import make_sampler, most_drawn
from engine.startup.sizes import CacheSize, check_context, longest_context, size_cache
from engine.startup.sleeping import make_sleeping
from engine.structured.grammars import Grammars
from engine.structured.tokenizer import TokenizerError, TokenizerReader
from sampling.device.compiling import Compilation, on_compilation
from sampling.device.ranks import LoneRank, RankExchange
from sampling.rows import SamplingRows
from sampling.vocab_shard import VocabShard

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
    runner = _build_runner(
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
    try:
        with phase("loading weights"), (memory or FixedMemory()).making("weights"):
            model = load_model(config.model, device, exchange, reference, adapters)
    except torch.OutOfMemoryError as error:
        flags = "--max-loras, --max-lora-rank, --lora-target-modules"
        slots = "" if wanted is None else f" and adapters' slots ({flags})"
        raise ConfigError(
            f"the model's weights{slots} do not fit on the GPU: {first_line(error)}"
        ) from error
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
    built = _build_runner(config, model, device, exchange, measure, begun, adapters, memory)
    runner, max_model_len = built.runner, built.size.max_model_len
    if not config.scheduler.chunked_prefill and config.scheduler.step_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill --max-num-batched-tokens must be at least the context length "
            f"({max_model_len}), got {config.scheduler.step_tokens}"
        )
    eos_token_ids = _stop_ids(config.model, model.vocab_size)
    grammars, grammar_error = _grammars(config, tokenizer, runner, model.vocab_size, eos_token_ids)
    info = EngineInfo(
        vocab_size=model.vocab_size,
        max_model_len=max_model_len,
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
    serving, drafting = wrap(runner), draft_rules(config.speculation, built.costs)
    rehearse(config, info, serving, drafting)
    _freeze()
    on_compilation(lambda name: logger.warning("kernel %s was compiled inside a request", name))
    reader = None if runner.adapters is None else lead_reader(runner.adapters.store)
    return EngineParts(config, info, serving, drafting, grammars, reader)


def _freeze() -> None:
    """Keep collections of garbage short: what was loaded lives as long as the process."""
    gc.collect()
    gc.freeze()


class _BuiltRunner(NamedTuple):
    """A rank's runner, and what it was sized to.

    `snapshot_multiple` and `bytes_per_snapshot` are as of `EngineInfo`, `sampler` says which path
    draws rows, in words, `statement` how far the model is from its reference, `costs` what steps
    with drafts and without took.
    """

    runner: ModelRunner
    size: CacheSize
    snapshot_multiple: int
    bytes_per_snapshot: int
    sampler: str
    statement: ErrorStatement | None
    costs: StepCosts | None


def _build_runner(
    config: EngineConfig,
    model: CausalLM,
    device: torch.device,
    exchange: RankExchange | None,
    measure: ErrorMeasure | None = None,
    begun: Compilation | None = None,
    adapters: AdapterStacks | None = None,
    memory: SleepingMemory | None = None,
) -> _BuiltRunner:
    """Make rows, sampler, cache and runner of a rank."""
    exchange, memory = exchange or LoneRank(), memory or FixedMemory()
    max_model_len = longest_context(config, model)
    assembly = _assembly(config, model, device, max_model_len, exchange, begun, adapters)
    statement = None
    if measure is not None:
        statement = measure.statement(model, device, assembly.kv_scales)
    wait_for_kernels(config, model, device)
    with phase("measuring memory"):
        size = size_cache(config, assembly, max_model_len, exchange)
    with phase("capturing steps"):
        with memory.making("kv_cache"):
            kept = assembly.memory(size.num_blocks, size.num_snapshots or 0)
        memory.note("kv_cache", kept.pages.layers)
        if model.routes is not None:
            memory.note("kv_cache", model.routes.tensors)
        runner = assembly.runner(kept, with_graphs=config.cuda_graphs, memory=memory)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what only the preparations needed
    sampler = assembly.sampler.description
    multiple = snapshot_multiple(assembly.state_specs, config.cache.block_size)
    with phase("timing steps"):
        costs = runner.step_costs()
    per_state = bytes_per_slot(assembly.state_specs)
    return _BuiltRunner(runner, size, multiple, per_state, sampler, statement, costs)


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


def _assembly(
    config: EngineConfig,
    model: CausalLM,
    device: torch.device,
    max_model_len: int,
    exchange: RankExchange,
    begun: Compilation | None,
    adapters: AdapterStacks | None,
) -> Assembly:
    """Make rows, sampler, drafter and buffers, and compile what the sampler may need."""
    max_rows, num_drafts = config.scheduler.max_rows, draft_rules(config.speculation).num_tokens
    rows = _request_rows(config, device, max_model_len)
    max_masks = 0 if config.structured is None else max_rows * (1 + num_drafts)
    # One row more than choices may hold: the one that pads a graph's batch.
    sampling_rows = SamplingRows(
        max_rows + 1,
        model.vocab_size,
        device,
        history=rows.token_ids,
        max_masks=max_masks,
        shard=VocabShard.split(model.vocab_size, exchange),
    )
    sampler = make_sampler(config.sampling, sampling_rows)
    speculation = make_speculation(config, model, rows, sampling_rows)
    with phase("compiling kernels"):
        # Before memory is measured and graphs are captured.
        num_compiled = itertools.count(1)
        on_compilation(lambda name: report(next(num_compiled)))
        if begun is not None:
            begun.finish()
        max_top = most_drawn(config.sampling, rows.token_ids.device)
        sampler.warm_up(max_rows, max_top=max_top)
        if speculation is not None:
            speculation.warm_up(torch.float32, max_top)
        on_compilation(None)
    buffers = None
    if config.cuda_graphs:
        buffers = step_buffers(model, config.scheduler.step_tokens, speculation)
    scales = None
    if config.cache.dtype == "fp8":
        with phase("scaling keys and values"):
            stored = stored_kv_scales(config.model, model.attention_specs, device, exchange)
            scales = kv_scales(model, device, config.cache.block_size, max_model_len, stored)
    return Assembly(
        model,
        rows,
        sampling_rows,
        sampler,
        speculation,
        device,
        buffers,
        scales,
        config.model.batch_invariant,
        None if adapters is None else RunnerAdapters(adapters),
    )


def _request_rows(config: EngineConfig, device: torch.device, max_model_len: int) -> RequestRows:
    max_rows, num_drafts = config.scheduler.max_rows, draft_rules(config.speculation).num_tokens
    recent = None
    if config.speculation is not None and (
        kept := config.speculation.suffix_decoding_max_cached_requests
    ):
        recent = RecentOutputs(kept, max_rows, device)
    size = config.cache.block_size
    return RequestRows(max_rows, max_model_len + 1, size, device, num_drafts, recent)


def make_speculation(
    config: EngineConfig, target: CausalLM, rows: RequestRows, sampling_rows: SamplingRows
) -> Speculation | None:
    """Make the drafter of the configuration and what verifies its drafts; None for no drafter."""
    wanted = config.speculation
    if wanted is None:
        return None
    attention = make_attention(rows, invariant=config.model.batch_invariant)
    drafter = make_drafter(wanted, config.model, target, rows, sampling_rows, attention)
    rates = wanted.acceptance_rates
    return Speculation(
        drafter,
        rows,
        sampling_rows,
        wanted.rejection_sample_method,
        None if rates is None else torch.tensor(rates, dtype=torch.float64, device=rows.device),
    )


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
