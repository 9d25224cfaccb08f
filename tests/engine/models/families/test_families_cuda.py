"""Every family of the table on a GPU, over the attention that serves there.

Rows are prefilled whole and in chunks, share a prefix, decode, and verify drafts. Prefill is our
own kernel's or FlashInfer's, where it computes all layers. In float32 (products are not in TF32)
logits are transformers' on the CPU; in bfloat16 they are about as far from the float32 model's as
those of transformers on the same GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from engine.attention import cuda
from engine.attention.flashinfer import is_expressible, modules_of
from engine.attention.modules import wait_for_modules
from engine.contracts.attention import AttentionInputs
from engine.contracts.model import CausalLM, ModelInputs
from engine.contracts.shared_blocks import Sharing
from engine.memory.pages import KVCache
from engine.models.decoder import Decoder
from sampling.device.triton_support import INTERPRETED
from tests.engine.kernels.where import DEVICES
from tests.engine.models.families.cuda_models import (
    BLOCK_SIZE,
    FAMILIES,
    LENGTH,
    NUM_ROWS,
    SHARED,
    SIZES,
    VOCAB,
)
from tests.engine.models.serving import expected, load, mean_kl, write_tiny

SPREAD = 1.4 * SIZES["hidden_size"] ** -0.5
"""Weights of this size keep numbers near 1 and attention far from uniform."""

# Steps: tokens of a decoding row, parts (row, first token, last token), and whether rows 2 and 3
# read the blocks that begin row 1.
Parts = list[tuple[int, int, int]]
STEPS: list[tuple[int, Parts, bool]] = [
    (1, [(0, 0, 150), (1, 0, SHARED)], False),
    (1, [(0, 150, 151), (1, SHARED, 130)], False),
    (0, [(2, SHARED, 140), (3, SHARED, 90)], True),
    (4, [(0, 151, 155), (1, 130, 134), (3, 90, 94)], False),
    (4, [(0, 155, 159), (2, 140, 144), (3, 94, 150)], False),
    (1, [(0, 159, 160), (1, 134, 135), (2, 144, 145), (3, 150, 151)], False),
    (4, [(2, 145, 149), (0, 160, LENGTH), (1, 135, LENGTH)], False),
    (1, [(2, 149, 150), (3, 151, LENGTH)], False),
]
NUM_TOKENS = sum(last - first for _, parts, _ in STEPS for _, first, last in parts)


def some_ids() -> torch.Tensor:
    """Rows of ids [rows, LENGTH]; the last three begin alike."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, VOCAB, (NUM_ROWS, LENGTH), generator=generator)
    ids[2:, :SHARED] = ids[1, :SHARED]
    return ids


class CudaRows:
    """Rows over a paged cache, under the attention that serves on a GPU."""

    def __init__(self, model: CausalLM, device: str) -> None:
        self._model, self._device = model, torch.device(device)
        width = LENGTH // BLOCK_SIZE
        count = NUM_ROWS * width + 1
        self._tables = (1 + torch.randperm(count - 1)).view(NUM_ROWS, width).int()
        self._tables[2:, : SHARED // BLOCK_SIZE] = self._tables[1, : SHARED // BLOCK_SIZE]
        specs, dtype = model.attention_specs, model.dtype
        cache = KVCache(specs, count, BLOCK_SIZE, dtype, self._device)
        self.attention = cuda.CudaAttention(specs, cache, NUM_ROWS, max_decode_len=4)

    def step(
        self, ids: torch.Tensor, decode_len: int, parts: Parts, is_shared: bool
    ) -> list[torch.Tensor]:
        """Logits [tokens, vocab] of each part."""
        rows = [row for row, *_ in parts]
        counts = [last - first for _, first, last in parts]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        lengths = np.array([last for *_, last in parts], dtype=np.int32)
        positions = torch.cat([torch.arange(first, last) for _, first, last in parts])
        tables = self._tables[rows]
        blocks = tables.repeat_interleave(torch.tensor(counts), 0)
        blocks = blocks.gather(1, (positions // BLOCK_SIZE)[:, None])[:, 0].long()
        sharing = None
        if is_shared:
            num_blocks = np.array([SHARED // BLOCK_SIZE], dtype=np.int32)
            sharing = Sharing(np.array([0, len(rows)]), num_blocks)
        here = self._device
        self.attention.begin(
            AttentionInputs(
                query_starts=torch.from_numpy(starts).to(here),
                query_starts_np=starts,
                seq_lens=torch.from_numpy(lengths).to(here),
                block_tables=tables.to(here),
                slots=(blocks * BLOCK_SIZE + positions % BLOCK_SIZE).to(here),
                seq_lens_np=lengths,
                max_query_len=max(counts),
                decode_len=decode_len,
                sharing=sharing,
            )
        )
        own = torch.cat([ids[row, first:last] for row, first, last in parts])
        inputs = ModelInputs(own.to(here, torch.int32), positions.to(here), self.attention)
        hidden = self._model.forward(inputs).final
        return list(torch.split(self._model.logits(hidden).float().cpu(), counts))


@torch.inference_mode()
def serve(rows: CudaRows, ids: torch.Tensor) -> torch.Tensor:
    """Logits [rows, LENGTH, vocab] by STEPS; NaN at tokens that another row brought, or none."""
    logits = torch.full((*ids.shape, VOCAB), torch.nan)
    for decode_len, parts, is_shared in STEPS:
        steps = rows.step(ids, decode_len, parts, is_shared)
        for (row, first, last), part in zip(parts, steps, strict=True):
            logits[row, first:last] = part
    return logits


@torch.inference_mode()
def continued(rows: CudaRows, prompt: torch.Tensor, count: int) -> torch.Tensor:
    """Decode `count` tokens after a prompt in row 0, each the likeliest."""
    ids = prompt[None].clone()
    first = 0
    for _ in range(count):
        (logits,) = rows.step(ids, 1, [(0, first, ids.shape[1])], False)
        first = ids.shape[1]
        ids = torch.cat([ids, logits[-1].argmax().view(1, 1)], 1)
    return ids[0]


@pytest.fixture
def no_flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_flashinfer_prefill", lambda *args: None)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", FAMILIES)
def test_float32(name: str, device: str, tmp_path: Path) -> None:
    """The same logits and the same greedy tokens.

    A token may differ where the two likeliest are within float32's error, some 2e-5, of each
    other: one of 24 tokens in one of 700 models.
    """
    reference, ids = write_tiny(FAMILIES[name], tmp_path, spread=SPREAD), some_ids()
    model = load(tmp_path, on=device, dtype="float32")
    assert isinstance(model, Decoder)
    got, wanted = serve(CudaRows(model, device), ids), expected(reference, ids)
    computed = ~got.isnan().any(-1)
    assert int(computed.sum()) == NUM_TOKENS
    # Some thirty sums of some hundred products, whose errors attention's sharp weights multiply.
    bound = 2**-14 * float(wanted.abs().max())
    torch.testing.assert_close(got[computed], wanted[computed], rtol=0, atol=bound)
    prompt = ids[0, :20]
    count = 4 if INTERPRETED else 24
    with torch.inference_mode():
        reference.generation_config.eos_token_id = None
        text = reference.generate(prompt[None], max_new_tokens=count, do_sample=False)[0]
    assert torch.equal(continued(CudaRows(model, device), prompt, count), text)


def check_bfloat16(name: str, folder: Path, prefill: Callable[[CudaRows], bool]) -> None:
    reference, ids = write_tiny(FAMILIES[name], folder, spread=SPREAD), some_ids()
    model = load(folder, on="cuda", dtype="bfloat16")
    rows = CudaRows(model, "cuda")
    got = serve(rows, ids)
    assert prefill(rows)
    computed = ~got.isnan().any(-1)
    wanted = expected(reference, ids)[computed]
    own = hf.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager"
    ).cuda()
    theirs = expected(own, ids.cuda()).float().cpu()[computed]
    # A token that takes another expert is off by far more than by rounding, in either run.
    share = 0.8 if hasattr(FAMILIES[name], "num_experts_per_tok") else 1.0
    kl = mean_kl(got[computed], wanted, share=share)
    assert kl <= 1.1 * mean_kl(theirs, wanted, share=share)


@pytest.mark.gpu
@pytest.mark.usefixtures("no_flashinfer")
@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16(name: str, tmp_path: Path) -> None:
    check_bfloat16(name, tmp_path, lambda rows: not rows.attention._by_flashinfer)


BY_FLASHINFER = ("cohere", "cohere2", "gemma3", "glm", "granite", "olmo3", "phi3-partial")
"""Families whose layers FlashInfer computes by modules that are built for other models too."""


@pytest.mark.gpu
@pytest.mark.parametrize("name", BY_FLASHINFER)
def test_bfloat16_through_flashinfer(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flashinfer")
    monkeypatch.setattr(cuda, "UNPLANNED_FLOPS", 0)
    write_tiny(FAMILIES[name], tmp_path)
    specs = load(tmp_path, dtype="bfloat16").attention_specs
    assert all(is_expressible(spec, torch.bfloat16) for spec in specs)
    wait_for_modules(modules_of(specs, torch.bfloat16, torch.device("cuda")))
    check_bfloat16(name, tmp_path, lambda rows: len(rows.attention._by_flashinfer) == len(specs))
