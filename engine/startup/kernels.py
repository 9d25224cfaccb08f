"""Kernels begun before weights are loaded: FlashInfer's modules, and the sampler's of Triton.

FlashInfer's builds take minutes. Who promises bits waits for them. Elsewhere a kernel of our own
serves until they are there; what was built before is only loaded, and serves from the first step.
"""

from __future__ import annotations

import torch

from engine.attention.cuda import launch_kernels
from engine.attention.flashinfer import launch_items, modules_of
from engine.attention.modules import loading, wait_for_modules
from engine.batch import RequestRows
from engine.config import EngineConfig
from engine.contracts.model import CausalLM
from engine.memory.pages import KVCache
from engine.models.expected import ExpectedModel, expected_model
from engine.planning.drafting import draft_rules
from engine.progress import phase
from engine.runner.graphs.decode_step import launch_ends
from engine.startup.samplers import most_drawn
from sampling import warm_up
from sampling.device.compiling import Compilation, begin_reading_triton, compiling
from sampling.device.triton_support import kernels_run_on
from sampling.paths import flashinfer


def begin_loading(config: EngineConfig, device: torch.device) -> None:
    """Begin to load, or to build, what the model's config says that it will need.

    Raises:
        ModelError: the model cannot be served.
    """
    if device.type != "cuda" or config.model.batch_invariant:  # none of FlashInfer's then
        return
    with phase("beginning kernels"):
        begin_reading_triton()
        model = expected_model(config.model, device)
        for module in modules_of(model.attention_specs, model.dtype, device):
            loading(module)
        if config.tensor_parallel_size > 1:  # FlashInfer draws no rows of several ranks
            return
        sampling = config.sampling
        flashinfer.begin_loading(sampling.flashinfer, sampling.use_fp64_gumbel, device)


def begin_compiling(config: EngineConfig, device: torch.device) -> Compilation | None:
    """Begin to compile the sampler's kernels, mixed steps' attention, and decode steps' ends.

    Returns:
        None where only the loaded model shows which they are.

    Raises:
        ModelError: the model cannot be served.
    """
    if device.type != "cuda" or not kernels_run_on(device):
        return None
    max_top = most_drawn(config.sampling, device)
    model = expected_model(config.model, device)
    if model.vocab_size is None:
        return None
    max_len = (config.model.max_model_len or model.max_position) + 1
    num_drafts, block_size = draft_rules(config.speculation).num_tokens, config.cache.block_size
    row = RequestRows(0, max_len, block_size, device, num_drafts)
    width, has_masks = row.token_ids.shape[1], config.structured is not None
    with compiling() as compilation:
        warm_up.compile_early(model.vocab_size, width, device, max_top, has_masks=has_masks)
        if not config.model.batch_invariant:
            _launch_attention(config, model, device)
        launch_ends(row, config.scheduler.max_rows)
    return compilation


def _launch_attention(config: EngineConfig, model: ExpectedModel, device: torch.device) -> None:
    """Launch what `CudaAttention` launches when it is made, over a cache of one block."""
    specs, is_fp8 = model.attention_specs, config.cache.dtype == "fp8"
    if not specs:  # no layer attends
        return
    scales = [torch.ones(2, spec.num_kv_heads, device=device) for spec in specs] if is_fp8 else None
    cache = KVCache(specs, 1, config.cache.block_size, model.dtype, device, scales)
    launch_kernels(specs, cache)
    if modules_of(specs, model.dtype, device):
        launch_items(specs, cache)


def wait_for_kernels(config: EngineConfig, model: CausalLM, device: torch.device) -> None:
    """Wait for those of the model's modules that are built.

    Waits for the others too where the configuration asks for it or promises bits.
    """
    speculation = config.speculation
    # Its tokens are those of decoding without drafts, at every time since the start. One-hot drafts
    # under "standard" keep tokens too, but were not asked to: they start as fast as decoding does.
    is_coupled = speculation is not None and speculation.rejection_sample_method == "coupled"
    # Every rank has all of a drafter, and must draft what the others do.
    is_repeated = speculation is not None and config.tensor_parallel_size > 1
    if device.type == "cuda" and not config.model.batch_invariant:
        with phase("waiting for kernels"):
            modules = modules_of(model.attention_specs, model.dtype, device)
            wait_for_modules(modules, builds=config.wait_for_kernels or is_coupled or is_repeated)
