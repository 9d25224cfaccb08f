"""A cache in float8: its scales, and an engine over it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import CacheConfig, CacheDtype, EngineConfig, ModelConfig, SchedulerConfig
from engine.engine import Engine
from engine.memory.pages import LARGEST_FP8, KVCache
from engine.messages.request import PromptLogprobsParams
from engine.models.loader import load_model
from engine.startup.build import build_engine
from engine.startup.kv_scales import HEADROOM, _run, _scales_of, kv_scales
from sampling.params import SamplingParams
from tests.engine.models.families.hybrid_models import config_of, write_hybrid
from tests.engine.tiny_models import write_model
from tests.engine.traffic import FRONTEND, Inbox, request, run

CPU = torch.device("cpu")
PROMPT = [3 + i * 29 % 90 for i in range(75)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    write_model("qwen3", folder)
    return folder


def make_engine(folder: Path, dtype: CacheDtype, step_tokens: int = 512) -> Engine:
    return build_engine(
        EngineConfig(
            model=ModelConfig(model=str(folder), device="cpu", dtype="float32", max_model_len=200),
            cache=CacheConfig(num_blocks=60, block_size=4, dtype=dtype),
            scheduler=SchedulerConfig(max_rows=4, max_step_tokens=step_tokens),
        )
    )


def replies(engine: Engine, num_requests: int) -> tuple[list[list[int]], list[np.ndarray]]:
    """Tokens of requests, one after another, and the logprobs of their prompts' tokens."""
    tokens, logprobs = [], []
    for handle in range(num_requests):
        prompt, inbox = PROMPT[: 75 - 4 * handle], Inbox()
        wanted = PromptLogprobsParams(start=len(prompt) - 8)
        fields = {"params": SamplingParams(temperature=0.0), "max_tokens": 40}
        engine.submit(FRONTEND, request(handle, prompt, prompt_logprobs=wanted, **fields))
        run(engine, inbox)
        tokens.append(inbox.tokens[handle, 0])
        logprobs.append(inbox.prompt_logprobs[handle].logprobs.chosen)
    return tokens, logprobs


def test_scales_are_powers_of_two_with_room_above_the_largest(folder: Path) -> None:
    model = load_model(ModelConfig(model=str(folder), dtype="float32"), CPU)
    plain = KVCache(model.attention_specs, 50, 4, torch.float32, CPU)
    _run(model, plain, 190)
    for scales, layer in zip(kv_scales(model, CPU, 4, 190), plain.layers, strict=True):
        largest = layer.abs().amax(dim=(0, 2, 4))
        assert scales.shape == (2, 2)
        assert torch.equal(torch.frexp(scales).mantissa, torch.full((2, 2), 0.5))
        assert (largest * HEADROOM <= scales * LARGEST_FP8).all()
        assert (largest * HEADROOM > scales / 2 * LARGEST_FP8).all()


def test_heads_of_zeros_or_of_no_numbers_have_scale_one() -> None:
    layer = torch.ones(2, 2, 4, 2, 8)
    layer[:, 0, :, 0] = 0.0
    layer[1, 1, 2, 1, 3] = torch.nan
    scales = _scales_of(layer)
    assert scales[0, 0] == 1.0
    assert scales[1, 1] == 1.0
    assert scales[0, 1] == scales[1, 0] == 2.0**-5  # 8 / 448, up to a power of two


def test_outputs_do_not_depend_on_chunks_or_cache_hits(folder: Path) -> None:
    """Keys are read as they are stored, also in the step that stores them."""
    whole, parts = make_engine(folder, "fp8"), make_engine(folder, "fp8", step_tokens=16)
    tokens, logprobs = replies(whole, 3)
    others, other_logprobs = replies(parts, 3)
    assert tokens == others
    for one, other in zip(logprobs, other_logprobs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4)  # the order of float32 sums


def test_rounding_is_felt_and_small(folder: Path) -> None:
    _, exact = replies(make_engine(folder, "auto"), 1)
    _, rounded = replies(make_engine(folder, "fp8"), 1)
    gap = np.abs(exact[0] - rounded[0])
    # Three bits after the leading one: 2^-4 of each key and value at most, over two layers.
    assert 1e-4 < gap.max() < 0.5


def test_a_cache_of_equal_bytes_holds_more_blocks(folder: Path) -> None:
    def num_blocks(dtype: CacheDtype) -> int:
        engine = build_engine(
            EngineConfig(
                model=ModelConfig(model=str(folder), device="cpu", dtype="bfloat16"),
                cache=CacheConfig(cpu_bytes=1 << 20, dtype=dtype),
            )
        )
        assert engine.info.cache_dtype == dtype
        return engine.info.num_blocks

    assert num_blocks("fp8") == 2 * num_blocks("auto")


def test_an_engine_takes_the_scales_of_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    """They cut off what its own would not."""
    _, own = replies(make_engine(folder, "fp8"), 1)
    _, exact = replies(make_engine(folder, "auto"), 1)
    write_model("qwen3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(2):
        tensors[f"model.layers.{layer}.self_attn.kv_scale"] = torch.tensor(2.0**-11)
    save_file(tensors, tmp_path / "model.safetensors")
    _, cut_off = replies(make_engine(tmp_path, "fp8"), 1)
    assert np.abs(cut_off[0] - exact[0]).mean() > 3 * np.abs(own[0] - exact[0]).mean()
    _, unrounded = replies(make_engine(tmp_path, "auto"), 1)
    np.testing.assert_array_equal(unrounded[0], exact[0])


@pytest.mark.parametrize("family", ["lfm2", "granite"])
def test_a_model_without_attention_needs_no_scales(family: str, tmp_path: Path) -> None:
    config = config_of(family)
    config.layer_types = ["conv" if family == "lfm2" else "linear_attention"] * 4
    write_hybrid(config, tmp_path)
    engine = make_engine(tmp_path, "fp8")
    inbox = Inbox()
    engine.submit(FRONTEND, request(0, PROMPT[:20], max_tokens=5))
    run(engine, inbox)
    assert len(inbox.tokens[0, 0]) == 5
