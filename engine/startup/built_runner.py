"""Builds the runner of a rank around a loaded model: rows, sampler, drafter, cache, graphs."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from engine.adapters.stacks import AdapterStacks
from engine.batch import RequestRows
from engine.config import EngineConfig
from engine.contracts.info import ErrorStatement
from engine.contracts.model import CausalLM
from engine.contracts.runner import StepCosts
from engine.memory.recent_outputs import RecentOutputs
from engine.memory.sleeping import FixedMemory, SleepingMemory
from engine.memory.states import bytes_per_slot, snapshot_multiple
from engine.models.kv_scales import stored_kv_scales
from engine.planning.drafting import draft_rules
from engine.progress import phase, report
from engine.runner.adapters import RunnerAdapters
from engine.runner.model_runner import ModelRunner
from engine.runner.speculation import Speculation
from engine.speculation.make_drafter import make_drafter
from engine.startup.assembly import Assembly, make_attention, step_buffers
from engine.startup.error_statement import ErrorMeasure
from engine.startup.kernels import wait_for_kernels
from engine.startup.kv_scales import kv_scales
from engine.startup.samplers import make_sampler, most_drawn
from engine.startup.sizes import CacheSize, longest_context, size_cache
from sampling.device.compiling import Compilation, on_compilation
from sampling.device.ranks import LoneRank, RankExchange
from sampling.rows import SamplingRows
from sampling.sampler import Sampler
from sampling.vocab_shard import VocabShard


class BuiltRunner(NamedTuple):
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


def build_runner(
    config: EngineConfig,
    model: CausalLM,
    device: torch.device,
    exchange: RankExchange | None,
    measure: ErrorMeasure | None = None,
    begun: Compilation | None = None,
    adapters: AdapterStacks | None = None,
    memory: SleepingMemory | None = None,
) -> BuiltRunner:
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
        memory.note("kv_cache", kept.tensors)
        runner = assembly.runner(kept, with_graphs=config.cuda_graphs, memory=memory)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what only the preparations needed
    sampler = assembly.sampler.description
    multiple = snapshot_multiple(assembly.state_specs, config.cache.block_size)
    with phase("timing steps"):
        costs = runner.step_costs()
    per_state = bytes_per_slot(assembly.state_specs)
    return BuiltRunner(runner, size, multiple, per_state, sampler, statement, costs)


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
    _warm_up(config, device, sampler, speculation, begun)
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


def _warm_up(
    config: EngineConfig,
    device: torch.device,
    sampler: Sampler,
    speculation: Speculation | None,
    begun: Compilation | None,
) -> None:
    """Compile what draws may need, before memory is measured and graphs are captured."""
    with phase("compiling kernels"):
        num_compiled = itertools.count(1)
        on_compilation(lambda name: report(next(num_compiled)))
        if begun is not None:
            begun.finish()
        max_top = most_drawn(config.sampling, device)
        sampler.warm_up(config.scheduler.max_rows, max_top=max_top)
        if speculation is not None:
            speculation.warm_up(torch.float32, max_top)
        on_compilation(None)


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
