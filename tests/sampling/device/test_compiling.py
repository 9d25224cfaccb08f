"""Every kernel of the sampler compiles for a Hopper GPU, on a machine that has none.

A compiler may refuse what the interpreter accepts: types that
differ between branches, constants that are not, shapes that are no powers of two.
"""

from __future__ import annotations

import ast
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sampling import sampler as sampler_module
from sampling import warm_up
from sampling.device import compiling as compiling_module
from sampling.device.compiling import compiling, compiling_together, on_compilation
from sampling.device.triton_support import triton
from sampling.paths.logprobs import prompt_kernels
from sampling.rows import EDITED, RANDOM, SamplingNeeds, SamplingRows
from sampling.sampler import SamplerConfig
from sampling.speculative import drafting, verification
from tests.no_gpu.compiler import Compiler, NoGPU, compiled_only, needs_compiler
from tests.sampling import drawn_rows
from tests.sampling.device.one_kernel import one_kernel
from tests.sampling.kernel_cases import EDITS
from tests.sampling.speculative import drafting_cases
from tests.sampling.speculative.speculated_steps import random_step

pytestmark = needs_compiler
VOCAB_SIZE = 151_936

FILTERS = {"top_k": 600, "top_p": 0.9, "min_p": 0.01}
REPORT = {"logprobs": 20, "logprob_token_ids": (1, 2), "logprobs_mode": "processed_logprobs"}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Kernels that were loaded, as far as a machine without a GPU can."""
    kernels: list[Any] = []
    monkeypatch.setattr(compiling_module, "_load", kernels.append)
    triton.runtime.driver.set_active(NoGPU())
    yield kernels
    triton.runtime.driver.set_active(None)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Names of kernels that were compiled in place of being launched."""
    for module in (sampler_module, drafting, verification):
        monkeypatch.setattr(module, "kernels_run_on", lambda device: True)
    monkeypatch.setattr(drawn_rows, "config_on", lambda device: SamplerConfig())
    with compiled_only() as compiler:
        yield compiler


def test_the_sampler(compiled: Compiler) -> None:
    logits = torch.zeros((drawn_rows.NUM_ROWS, VOCAB_SIZE), dtype=torch.bfloat16)
    for wishes in ([{}, {"temperature": 0.0}], [FILTERS], [EDITS | FILTERS | REPORT]):
        drawn_rows.draw(logits, wishes, VOCAB_SIZE)
    assert len(compiled.names) > 8


def test_one_kernel_reports_any_number_of_ids(compiled: Compiler) -> None:
    logits, tokens = torch.zeros(2, VOCAB_SIZE), torch.zeros(2, dtype=torch.int64)
    for count in (10, 300, 2000):
        prompt_kernels(logits, tokens, 5, torch.zeros(2, count, dtype=torch.int64), True)
    names = [kernel.name for kernel in compiled.compiled.values()]
    assert names.count("_given_kernel") == 1


@pytest.mark.parametrize("has_draft_logits", [True, False])
@pytest.mark.parametrize("method", ["standard", "block", "synthetic"])
def test_verified_drafts(
    method: verification.Method, has_draft_logits: bool, compiled: Compiler
) -> None:
    wishes: list[dict[str, Any]] = [EDITS | REPORT, {"temperature": 0.0}]
    step = random_step(wishes, 3, 4, 2500, has_draft_logits=has_draft_logits)
    step.verify(method, [0.5] * 4 if method == "synthetic" else None)
    assert {"_verdict_kernel", "_last_token_kernel"} <= compiled.names


@pytest.mark.parametrize("method", ["greedy", "gumbel", "coupled"])
def test_drafts(method: drafting.DraftMethod, compiled: Compiler) -> None:
    batch, rows = drafting_cases.make_rows(2500)
    slots = torch.zeros(drafting_cases.N + 1, 4, 2500) if method == "gumbel" else None
    logits = drafting_cases.make_logits(2500)
    drafting.draw_drafts(logits, batch, rows, 1, method, draft_logits=slots)
    assert compiled.names


def test_what_no_kernel_wrote_can_be_used_as_token_ids() -> None:
    leftovers = torch.full((50_000,), -7, dtype=torch.int32)
    del leftovers
    with compiling_together():
        like = torch.empty(50_000, dtype=torch.int32)
        for memory in (like, torch.empty_like(like), like.new_empty(50_000)):
            assert memory.count_nonzero() == 0
            memory.fill_(-7)
    assert torch.empty is not torch.zeros
    assert torch.Tensor.new_empty is not torch.Tensor.new_zeros


def test_a_listener_hears_of_each_kernel_until_it_is_removed() -> None:
    heard: list[str] = []
    runtime = triton.knobs.runtime
    on_compilation(heard.append)
    try:
        runtime.jit_post_compile_hook(fn=types.SimpleNamespace(name="a_kernel"))
        assert heard == ["a_kernel"]
    finally:
        on_compilation(None)
    assert runtime.jit_post_compile_hook is None


def test_anything_may_run_while_kernels_are_compiled(loaded: list[Any]) -> None:
    out = torch.zeros(16, dtype=torch.int32)
    with compiling() as compilation:
        for count in (8, 16, 8):
            one_kernel[(1,)](out, count=count)
    assert torch.empty is not torch.zeros
    assert "__getitem__" not in vars(triton.runtime.JITFunction), "launches are collected still"
    heard: list[str] = []
    on_compilation(heard.append)
    try:
        compilation.finish()
    finally:
        on_compilation(None)
    assert sorted(kernel.src.constants[(1,)] for kernel in loaded) == [8, 16]
    assert len(heard) == 2
    assert not out.any()


def test_one_thread_at_a_time_parses(loaded: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    parsing, met, parse = threading.Lock(), threading.Event(), ast.parse

    def watched(*args: Any, **options: Any) -> Any:
        if not parsing.acquire(blocking=False):
            met.set()
            return parse(*args, **options)
        try:
            time.sleep(0.02)  # others would come
            return parse(*args, **options)
        finally:
            parsing.release()

    monkeypatch.setattr(ast, "parse", watched)
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")  # what a cache has is not parsed
    out = torch.zeros(256, dtype=torch.int32)
    with compiling_together():
        for count in (128, 256):
            one_kernel[(1,)](out, count=count)
    assert len(loaded) == 2
    assert not met.is_set()


def test_kernels_wait_until_all_are_collected_and_an_error_lets_them_go(loaded: list[Any]) -> None:
    out = torch.zeros(64, dtype=torch.int32)
    kernels: list[Any] = []
    with pytest.raises(RuntimeError, match="no more"), compiling() as compilation:  # noqa: PT012
        one_kernel[(1,)](out, count=64)
        kernels += compilation._kernels
        time.sleep(0.05)
        assert not kernels[0].future.done()
        raise RuntimeError("no more")
    assert kernels[0].result(), "compiled none the less"


def test_what_is_begun_before_the_model_is_what_the_sampler_compiles(
    loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = SamplingNeeds(flags=RANDOM | EDITED, greedy=False, num_top=0, num_explicit=0)
    monkeypatch.setattr(warm_up, "_needs_of_kernels", lambda like, max_top: [needs])
    vocab_size, history_len, cpu = 5000, 65, torch.device("cpu")
    with compiling_together():
        warm_up.compile_early(vocab_size, history_len, cpu, max_top=0, has_masks=True)
    assert loaded
    heard: list[str] = []
    on_compilation(heard.append)
    try:
        history = torch.zeros((9, history_len), dtype=torch.int32)
        rows = SamplingRows(9, vocab_size, cpu, history=history, max_masks=8)
        with compiling_together():
            warm_up.compile_kernels(rows, torch.float32, max_top=0)
    finally:
        on_compilation(None)
    assert not heard


def test_launchers_are_made_once_a_signature_and_not_loaded(
    loaded: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    load_module = triton.runtime.build._load_module_from_path

    def make(src: Any, metadata: Any) -> None:
        module = triton.runtime.build._load_module_from_path("__triton_launcher", "none")
        made.append((src.signature, module.launch))

    monkeypatch.setattr(NoGPU, "launcher_cls", staticmethod(make), raising=False)
    nvidia = triton.backends.nvidia.driver
    monkeypatch.setattr(nvidia, "make_launcher", lambda: "", raising=False)  # as in Triton 3.6
    with compiling_together():
        for dtype in (torch.int32, torch.int64):
            out = torch.zeros(32, dtype=dtype)
            for count in (4, 32):
                one_kernel[(1,)](out, count=count)
    assert len(loaded) == 4
    assert len(made) == 2
    assert all(launch is None for _, launch in made)
    assert triton.runtime.build._load_module_from_path is load_module
