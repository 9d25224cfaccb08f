"""Starts of servers on a GPU that is not there, and their first steps, by configurations.

Models have a layer or two of usual widths: kernels are chosen and cut by widths. The fallback has
no start here: it proves its logits first, and nothing is computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers as hf
from msgspec import structs

from benchmarks.bench_lora import write_random_adapter
from demo import EAGLE_FOLDER, MODEL_FOLDER
from engine.config import (
    AdaptersConfig,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from engine.contracts.runner import StartingRunner
from engine.engine import Engine
from engine.messages.request import ScoringRequest
from engine.models.loader import load_model
from engine.parallel.lead import LeadRunner
from engine.runner.model_runner import ModelRunner
from engine.speculative_config import SpeculativeConfig
from engine.startup.build import assemble, build_engine
from engine.startup.error_statement import ErrorMeasure
from engine.startup.ranks import set_threads
from engine.structured.tokenizer import TokenizerReader
from tests.engine.models.formats.gpt_oss import CONFIG as MXFP4
from tests.engine.models.formats.gpt_oss import random_mxfp4
from tests.engine.models.formats.kinds import KINDS
from tests.engine.models.formats.packers import (
    rewrite,
    write_quantized,
    write_quantized_experts,
)
from tests.engine.parallel.rank_engines import mixed
from tests.engine.structured.constrained import STRUCTURED
from tests.engine.traffic import FRONTEND
from tests.no_gpu.ranks import PretendedRanks, SilentRanks
from tests.no_gpu.tensors import GPU

VOCAB, NUM_STEPS = 8192, 12
ADAPTER, HEAD = "adapter", "head"
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "eos_token_id": 1,
    "dtype": "bfloat16",
}
SMALL = SIZES | {"hidden_size": 1024, "intermediate_size": 2560, "num_attention_heads": 8}
GEMMA4: dict[str, Any] = SIZES | {  # 26B
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "enable_moe_block": True,
    "num_experts": 16,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
}
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 768}
WIDE = SIZES | {"vocab_size": 151_936}
LATENT: dict[str, Any] = SIZES | {
    "num_key_value_heads": 16,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_shared_experts": 2,
    "moe_intermediate_size": 512,
}
DELTA: dict[str, Any] = SIZES | {  # of Qwen3.6's widths
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 256,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
SPACE: dict[str, Any] = {name: SIZES[name] for name in SIZES if name != "num_hidden_layers"} | {
    "hybrid_override_pattern": "ME*",
    "head_dim": 128,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
    "moe_shared_expert_intermediate_size": 1536,
}
CONVOLVED: dict[str, Any] = SIZES | {
    "num_hidden_layers": 2,
    "layer_types": ["conv", "full_attention"],
    "num_dense_layers": 1,
}
SINKS: dict[str, Any] = SIZES | {
    "head_dim": 64,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 128,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_attention_heads": 64,
}
BASE = EngineConfig(
    model=ModelConfig(model="", device="cuda", load_format="dummy", max_model_len=512),
    cache=CacheConfig(num_blocks=512),
    scheduler=SchedulerConfig(max_rows=32, max_step_tokens=512),
    structured=STRUCTURED,
)
Write = Callable[[Path], Any]

LENGTHS = np.array([3, 1, 5], dtype=np.int32)
SCORING = ScoringRequest(
    handle=1000,
    query_token_ids=np.arange(40, dtype=np.int32),
    item_token_ids=np.arange(LENGTHS.sum(), dtype=np.int32),
    item_lens=LENGTHS,
    num_read=np.ones_like(LENGTHS),
    id_lists=np.array([[5, 8000, 300], [1, 2, -1]], dtype=np.int32),
)


@dataclass(frozen=True)
class Start:
    """A server to be started.

    Attributes:
        write: writes the model's folder; None is the demo model.
        model: fields of the `ModelConfig`. fields: of the `EngineConfig`.
        has_flashinfer: whether FlashInfer's prefill is there.
    """

    write: Write | None
    model: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    has_flashinfer: bool = False


def _config(config: Any, quantization: dict[str, Any] | None = None) -> Write:
    """A folder with nothing but a config; weights are random."""

    def write(folder: Path) -> None:
        config.architectures = [hf.AutoModelForCausalLM._model_mapping[type(config)].__name__]
        config.save_pretrained(folder)
        if quantization is not None:
            path = folder / "config.json"
            content = json.loads(path.read_text()) | {"quantization_config": quantization}
            path.write_text(json.dumps(content))

    return write


def _checkpoint(kind: str) -> Write:
    config, module = KINDS[kind]
    return partial(write_quantized, config=config, module_tensors=module, sizes=SMALL)


def _experts_checkpoint(kind: str) -> Write:
    config, module = KINDS[kind]
    model = hf.Qwen3MoeConfig(**SMALL, **MOE, head_dim=128)
    return lambda folder: write_quantized_experts(folder, model, config | ROUTERS, module)


def _mxfp4(folder: Path) -> None:
    config = hf.GptOssConfig(**SINKS)
    with torch.device("meta"):
        model = hf.AutoModelForCausalLM.from_config(config)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, width, channels = tensor.shape
            stored = random_mxfp4(count, channels, width)
            tensors |= {f"{name}{key}": part for key, part in stored.items()}
        else:
            tensors[name] = torch.zeros(tensor.shape, dtype=torch.bfloat16)
    _config(config)(folder)
    rewrite(folder, tensors, MXFP4)


ROUTERS = {"modules_to_not_convert": ["gate"]}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
SNAPSHOTS = {"cache": structs.replace(BASE.cache, num_snapshots=8)}
FP8_CACHE = {"cache": structs.replace(BASE.cache, dtype="fp8")}
ADAPTERS = {"adapters": AdaptersConfig(max_loras=2, max_rank=8)}
RANKS = {"tensor_parallel_size": 2}
ON_DISK = {"load_format": "auto", "dtype": "bfloat16"}
QWEN3 = hf.Qwen3Config(**SIZES, head_dim=128)
QWEN3_MOE = hf.Qwen3MoeConfig(**SIZES, **MOE, head_dim=128)
V3 = {"q_lora_rank": 1536, "n_group": 4, "topk_group": 2}


def _with_head(**fields: Any) -> Write:
    """A folder as of `_config`, in it that of a head that drafts in blocks, of some fields."""
    nested = {name: fields.pop(name) for name in list(fields) if name in SELECTOR}

    def write(folder: Path) -> None:
        _config(QWEN3)(folder)
        (folder / HEAD).mkdir()
        content = json.loads((folder / "config.json").read_text()) | fields
        content |= {"block_size": 8, "mask_token_id": 1, "target_layer_ids": [0, 0]}
        (folder / HEAD / "config.json").write_text(json.dumps(content | {"dflash_config": nested}))

    return write


SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 16, "selector_rank": 64, "selector_top_k": 16}


def _drafts(method: Any, **fields: Any) -> dict[str, Any]:
    return {"speculation": SpeculativeConfig(method=method, num_speculative_tokens=3, **fields)}


EAGLE = partial(_drafts, "eagle", model=str(EAGLE_FOLDER))
LENGTH = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
STARTS: dict[str, Start] = {
    "demo": Start(None),
    "float32": Start(None, {"dtype": "float32"}),
    "batch invariant": Start(None, {"batch_invariant": True}, _drafts("ngram")),
    "batch invariant, float32": Start(None, {"batch_invariant": True, "dtype": "float32"}),
    "batch invariant, experts": Start(_config(QWEN3_MOE), {"batch_invariant": True}),
    "batch invariant, fp8": Start(
        _config(QWEN3_MOE), {"batch_invariant": True, "quantization": "fp8"}, FP8_CACHE
    ),
    "batch invariant, gptq": Start(
        _checkpoint("gptq, symmetric"), ON_DISK | {"batch_invariant": True}
    ),
    "wide vocabulary": Start(_config(hf.Qwen3Config(**WIDE, head_dim=128))),
    "fp8 cache": Start(_config(hf.LlamaConfig(**SIZES)), {}, FP8_CACHE),
    "flashinfer": Start(None, has_flashinfer=True),
    "flashinfer, fp8 cache": Start(None, {}, FP8_CACHE, has_flashinfer=True),
    "fp8 at load": Start(_config(QWEN3), {"quantization": "fp8"}),
    "fp8 by block": Start(_config(QWEN3, BLOCKS), {}, FP8_CACHE),
    "fp8 by tensor": Start(_checkpoint("fp8 by tensor"), ON_DISK),
    "fp8 by channel": Start(_checkpoint("fp8 by channel"), ON_DISK),
    "awq": Start(_checkpoint("awq"), ON_DISK | {"dtype": "float16"}),
    "gptq": Start(_checkpoint("gptq, symmetric"), ON_DISK),
    "gptq in order": Start(_checkpoint("gptq in order of activations"), ON_DISK),
    "experts": Start(_config(QWEN3_MOE)),
    "experts, fp8 at load": Start(_config(QWEN3_MOE), {"quantization": "fp8"}),
    "experts, fp8 by block": Start(_config(QWEN3_MOE, BLOCKS | ROUTERS)),
    "experts, fp8 by tensor": Start(_experts_checkpoint("fp8 by tensor"), ON_DISK),
    "experts, awq": Start(_experts_checkpoint("awq"), ON_DISK | {"dtype": "float16"}),
    "experts, gptq": Start(_experts_checkpoint("gptq, symmetric"), ON_DISK),
    "experts, gptq in order": Start(_experts_checkpoint("gptq in order of activations"), ON_DISK),
    "gpt-oss": Start(_config(hf.GptOssConfig(**SINKS)), {}, FP8_CACHE),
    "gpt-oss, mxfp4": Start(_mxfp4, ON_DISK),
    "deepseek-v2-lite": Start(_config(hf.DeepseekV2Config(**LATENT, q_lora_rank=None))),
    "deepseek-v3": Start(_config(hf.DeepseekV3Config(**LATENT, **V3)), {}, FP8_CACHE),
    "gemma2": Start(_config(hf.Gemma2Config(**SIZES, head_dim=256))),
    "delta rule": Start(
        _config(hf.Qwen3_5MoeTextConfig(**DELTA, **MOE, shared_expert_intermediate_size=512)),
        {},
        SNAPSHOTS,
    ),
    "delta rule, fp8 at load, own head": Start(
        _config(hf.Qwen3_5TextConfig(**DELTA)),
        {"quantization": "fp8"},
        SNAPSHOTS | _drafts("mtp"),
    ),
    "state space": Start(_config(hf.NemotronHConfig(**SPACE)), {}, SNAPSHOTS | _drafts("ngram")),
    "short convolution": Start(_config(hf.Lfm2MoeConfig(**CONVOLVED, **MOE)), {}, SNAPSHOTS),
    "eagle": Start(None, {}, EAGLE(draft_sample_method="gumbel")),
    "eagle, coupled": Start(None, {}, EAGLE(rejection_sample_method="coupled")),
    "eagle, block": Start(None, {}, EAGLE(rejection_sample_method="block")),
    "dflash": Start(_with_head(), {}, _drafts("dflash", model=HEAD)),
    "dflash2, block": Start(
        _with_head(**SELECTOR), {}, _drafts("dflash", model=HEAD, rejection_sample_method="block")
    ),
    "dflash, batch invariant": Start(
        _with_head(), {"batch_invariant": True}, _drafts("dflash", model=HEAD)
    ),
    "dspark": Start(
        _with_head(markov_rank=64),
        {},
        _drafts("dspark", model=HEAD, draft_sample_method="gumbel"),
    ),
    "draft model": Start(None, {}, _drafts("draft_model", model=str(MODEL_FOLDER))),
    "n-grams": Start(None, {}, _drafts("ngram")),
    "suffixes": Start(None, {}, _drafts("suffix", suffix_decoding_max_cached_requests=8)),
    "adapters": Start(_config(QWEN3), {}, ADAPTERS),
    "adapters, fp8 at load": Start(_config(QWEN3), {"quantization": "fp8"}, ADAPTERS),
    "adapters, experts": Start(_config(QWEN3_MOE), {}, ADAPTERS),
    "adapters, experts, fp8 at load": Start(_config(QWEN3_MOE), {"quantization": "fp8"}, ADAPTERS),
    "adapters, experts, awq": Start(
        _experts_checkpoint("awq"), ON_DISK | {"dtype": "float16"}, ADAPTERS
    ),
    "adapters, drafts": Start(_config(QWEN3), {}, ADAPTERS | _drafts("ngram")),
    "synthetic": Start(None, {}, _drafts("ngram", **LENGTH) | {"structured": None}),
    "2 ranks": Start(None, {}, RANKS | EAGLE()),
    "2 ranks, experts": Start(_config(QWEN3_MOE), {}, RANKS),
    "2 ranks, gemma3": Start(_config(hf.Gemma3TextConfig(**SIZES, head_dim=256)), {}, RANKS),
    "4 ranks, gpt-oss, mxfp4": Start(_mxfp4, ON_DISK, {"tensor_parallel_size": 4}),
    "8 ranks": Start(_config(QWEN3), {"quantization": "fp8"}, {"tensor_parallel_size": 8}),
}
if hasattr(hf, "Gemma4TextConfig"):  # not in transformers 5.0
    STARTS["gemma4"] = Start(_config(hf.Gemma4TextConfig(**GEMMA4)))


def write(name: str, folder: Path) -> Path:
    """Write the model of a start into a folder; returns the model's folder."""
    write = STARTS[name].write
    if write is None:
        return MODEL_FOLDER
    write(folder)
    return folder


def start(name: str, folder: Path) -> Engine:
    """Start the engine of a model that is written, without a rehearsal.

    That needs tokens that are drawn, and what it compiles late would not be reported of `serve`.
    """
    threads = mock.patch("engine.adapters.store.ThreadPoolExecutor", return_value=Inline())
    with mock.patch("engine.startup.build.rehearse"), threads:
        return _start(name, folder)


class Inline(Executor):
    """Does what it is given at once: tensors pretend on one thread alone."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def _start(name: str, folder: Path) -> Engine:
    model = structs.replace(BASE.model, model=str(folder), **STARTS[name].model)
    config = structs.replace(BASE, model=model, **STARTS[name].fields)
    if config.speculation is not None and config.speculation.model == HEAD:
        drafts = structs.replace(config.speculation, model=str(folder / HEAD))
        config = structs.replace(config, speculation=drafts)
    if config.adapters is not None:
        adapter = folder / "adapter"
        write_random_adapter(adapter, json.loads((folder / "config.json").read_text()), rank=8)
        modules = ((ADAPTER, str(adapter)),)
        config = structs.replace(config, adapters=structs.replace(config.adapters, modules=modules))
    if config.tensor_parallel_size == 1:
        return build_engine(config)
    set_threads(config)
    exchange = PretendedRanks(config.tensor_parallel_size)

    def lead(runner: ModelRunner) -> StartingRunner:
        return LeadRunner(runner, runner.mask_buffer, SilentRanks())

    reader = None if config.structured is None else TokenizerReader(config.structured)
    measure = ErrorMeasure(config, reader, exchange)
    loaded = load_model(config.model, GPU, exchange, measure.reference)
    return assemble(config, loaded, GPU, lead, reader, exchange, measure).engine()


def serve(engine: Engine) -> None:
    """Take the first steps of many kinds of requests; what they answer says nothing."""
    names = [""] if engine.adapters is None else ["", ADAPTER]
    for index, request in enumerate(mixed(24)):
        adapter = names[index % len(names)]
        engine.submit(FRONTEND, structs.replace(request, adapter=adapter))
    engine.score(FRONTEND, SCORING)
    for _ in range(NUM_STEPS):
        engine.step()
