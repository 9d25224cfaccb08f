"""Compares the model that is served with its reference: what `tailrace verify --model` adds.

The text of the statement of error is served as requests are: a prompt in two chunks, then tokens
one by one, by the attention of the device, over a cache as the server's. Its logits are compared
with the reference's in float32, which is transformers' own model or, of a quantised checkpoint,
whose tools are many, the dequantised weights as this server reads them.

Of several ranks all serve the text together; the reference is rank 0's alone, which gathers their
logits.

The bound is what the served dtype costs anyway, the reference's own run in it, and what roundings
to float8 may cost besides.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from msgspec import structs

from engine.batch import RequestRows
from engine.config import EngineConfig
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import ModelInputs
from engine.memory.pages import KVCache
from engine.memory.states import text_states
from engine.models.expected import max_position, resolve_dtype
from engine.models.formats.config import quantization as quantization_of
from engine.models.kv_scales import stored_kv_scales
from engine.models.loader import load_model
from engine.models.model_config import read_config
from engine.models.reference import Reference
from engine.models.weights.folder import model_folder, read_json
from engine.startup.assembly import make_attention
from engine.startup.device import resolve_device
from engine.startup.error_statement import ROWS, Difference, difference
from engine.startup.error_text import error_text
from engine.startup.kv_scales import kv_scales
from engine.startup.ranks import of_ranks
from engine.structured.tokenizer import TokenizerReader
from sampling.device.ranks import RankExchange
from sampling.selftest.checks import Result
from sampling.vocab_shard import VocabShard

logger = logging.getLogger(__name__)

NUM_DECODED = 16
"""Tokens at the text's end that are served one by one."""
TIMES_OWN = 1.5
"""A served model may be so many times as far from the reference as that is in the served dtype."""
EXACT_KL, FP8_KL = 1e-6, 0.1
"""Mean KL in nats that is allowed besides: for float32's order of sums, for float8's roundings. The
demo model is less than 0.01 from itself in float8."""


EXACT_GAP, TIMES_OWN_GAP = 1e-2, 3.0
"""The same of the largest gap, which varies more; float8's is reported and not bounded."""


class ModelReference(NamedTuple):
    """What a served model is compared with.

    Attributes:
        ids: int64 [T], the text's. logits: float32 [T, vocab], of the reference.
        own: how far the reference is from itself in the served dtype.
        name: of the reference. is_fp8: whether anything served is in float8.
    """

    ids: torch.Tensor
    logits: torch.Tensor
    own: Difference
    name: str
    is_fp8: bool


def model_reference(config: EngineConfig) -> ModelReference | None:
    """Run the reference of `config.model`; None for random weights, which have none."""
    model, device = config.model, resolve_device(config.model)
    if model.load_format == "dummy":
        return None
    folder = model_folder(model.model, model.revision)
    hf_config = read_config(folder, model.trust_remote_code, may_be_quantized=True)
    path = folder / "config.json"
    quantization = quantization_of(read_json(path), path)
    reader = None if config.structured is None else TokenizerReader(config.structured)
    vocab_size = hf_config.get_text_config(decoder=True).vocab_size
    ids = error_text(reader, vocab_size)[1][: model.max_model_len or max_position(model)].to(device)
    run = _of_transformers if quantization is None else _of_dequantized
    dtype = resolve_dtype(model, hf_config, device)
    logits = reference_logits(run, config, ids, torch.float32)
    own = Difference(0.0, 0.0)
    if dtype != torch.float32:
        own = _difference(logits, reference_logits(run, config, ids, dtype))
    schemes = () if quantization is None else quantization.schemes
    is_fp8 = (
        any(scheme.is_fp8 for scheme in schemes)
        or model.quantization == "fp8"
        or config.cache.dtype == "fp8"
    )
    name = "transformers" if quantization is None else "dequantized weights"
    return ModelReference(ids, logits, own, f"{name} in float32", is_fp8)


def model_checks(
    config: EngineConfig, reference: ModelReference | None, exchange: RankExchange
) -> Iterator[Result]:
    """Compare the logits of `config.model`, as all ranks serve it, with its reference's."""
    if reference is None:
        name = config.model.model
        yield Result("logits: mean KL", name, "random weights", "none", 0.0, True)
        return
    logits = served_logits(config, reference.ids, exchange)
    served = _difference(reference.logits, logits)
    name = f"{reference.name}{of_ranks(exchange)}"
    yield from _results(served, reference.own, name, is_fp8=reference.is_fp8)


def _results(
    served: Difference, own: Difference, against: str, *, is_fp8: bool
) -> Iterator[Result]:
    bound = TIMES_OWN * own.mean_kl + (FP8_KL if is_fp8 else EXACT_KL)
    passed = served.mean_kl <= bound  # NaN is not
    statistic, threshold = f"{served.mean_kl:.2g} nats", f"{bound:.2g}"
    yield Result("logits: mean KL", against, statistic, threshold, 0.0, passed)
    most = math.inf if is_fp8 else TIMES_OWN_GAP * own.largest_gap + EXACT_GAP
    threshold = "none" if is_fp8 else f"{most:.2g}"
    passed, statistic = served.largest_gap <= most, f"{served.largest_gap:.2g} nats"
    yield Result("logits: largest gap", against, statistic, threshold, 0.0, passed)


def _difference(wanted: torch.Tensor, other: torch.Tensor) -> Difference:
    return difference(zip(*(torch.split(x, ROWS) for x in (wanted, other)), strict=True))


def reference_logits(
    run: Callable[[EngineConfig, torch.Tensor, torch.dtype], torch.Tensor],
    config: EngineConfig,
    ids: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Logits [T, vocab] of ids int64 [T] by a reference in a dtype.

    It runs where the ids are or, where that device has no room for it, on the CPU.
    """
    try:
        return run(config, ids, dtype)
    except torch.OutOfMemoryError:
        logger.warning("the reference in %s runs on the CPU: the GPU has no room", dtype)
    _release(ids.device)
    return run(config, ids.cpu(), dtype).to(ids.device)


@torch.inference_mode()
def _of_transformers(config: EngineConfig, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Logits by transformers' own model of the checkpoint."""
    from engine.models.fallback.construct import checkpoint_module  # seconds to import

    folder = model_folder(config.model.model, config.model.revision)
    trusted = config.model.trust_remote_code
    hf_config = read_config(folder, trusted)
    module = checkpoint_module(folder, hf_config, dtype, ids.device, trusted)
    logits: torch.Tensor = module(input_ids=ids[None], use_cache=False).logits[0].float()
    del module
    _release(ids.device)
    return logits


@torch.inference_mode()
def _of_dequantized(config: EngineConfig, ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Logits by the dequantised weights of a checkpoint."""
    reference = Reference(lambda vocab_size: ids)
    precise = structs.replace(config.model, dtype=str(dtype).removeprefix("torch."))
    model = load_model(precise, ids.device, reference=reference)
    assert reference.hidden is not None
    logits = model.logits(reference.hidden)
    del model, reference
    _release(ids.device)
    return logits


@torch.inference_mode()
def served_logits(config: EngineConfig, ids: torch.Tensor, exchange: RankExchange) -> torch.Tensor:
    """Logits [T, vocab] of ids int64 [T], as an engine would compute them in several steps.

    All ranks of the exchange do so together, and gather what each has of them.
    """
    device, length, block_size = ids.device, len(ids), config.cache.block_size
    model = load_model(config.model, device, exchange)
    num_blocks = -(-length // block_size) + 1
    specs, scales = model.attention_specs, None
    if config.cache.dtype == "fp8":
        stored = stored_kv_scales(config.model, specs, device, exchange)
        scales = kv_scales(model, device, block_size, length, stored)
    cache = KVCache(specs, num_blocks, block_size, model.dtype, device, scales)
    rows = RequestRows(1, length + 1, block_size, device, 0)
    attention = make_attention(rows)(specs, cache)
    blocks = torch.arange(1, num_blocks, dtype=torch.int32, device=device)
    middle = length // 2
    last = max(length - NUM_DECODED, middle)
    states = text_states(model.state_specs(0), device)
    logits, shard = [], VocabShard.split(model.vocab_size, exchange)
    for start, end in pairwise(sorted({0, middle, *range(last, length + 1)})):
        attention.begin(AttentionInputs.of_row(blocks, block_size, start, end))
        positions = torch.arange(start, end, device=device)
        own = ids[start:end].to(torch.int32)
        hidden = model.forward(ModelInputs(own, positions, attention, states(start, end))).final
        logits.append(shard.whole_rows(model.logits(hidden)).clone())
    return torch.cat(logits)


def _release(device: torch.device) -> None:
    """Give back what a model held, before the next one is loaded."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
