"""Invariant products against float64, and the same bits for every number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.kernels.invariant import product
from engine.kernels.invariant.product import InvariantProduct, disagreement, few_rows_linear
from tests.engine.kernels.where import DEVICES

SHAPES = [(48, 64), (100, 96), (64, 1024), (40, 1040), (130, 2048)]


@pytest.fixture
def uncut() -> Iterator[None]:
    """The library, kept from cutting sums."""
    matmul = torch.backends.cuda.matmul
    kept = matmul.allow_bf16_reduced_precision_reduction
    library = torch.backends.cuda.preferred_blas_library()
    product.use_uncut_products()
    yield
    matmul.allow_bf16_reduced_precision_reduction = kept
    matmul.allow_fp16_reduced_precision_reduction = kept
    torch.backends.cuda.preferred_blas_library(library)


def _case(rows: int, out: int, inner: int, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + out + inner)
    x = torch.randn(rows, inner, generator=generator)
    weight = torch.randn(out, inner, generator=generator) * inner**-0.5
    bias = torch.randn(out, generator=generator)
    return [tensor.to(dtype).to(device) for tensor in (x, weight, bias)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("shape", SHAPES)
def test_few_rows_equal_float64(shape: tuple[int, int], dtype: torch.dtype, device: str) -> None:
    """A sum of K terms of size K^-1/2 is rounded K times, each by half a digit of at most 8."""
    x, weight, bias = _case(5, *shape, dtype, device)
    out = few_rows_linear(x, weight, bias, torch.float32)
    wanted = x.double() @ weight.double().T + bias.double()
    bound = 8 * shape[1] * torch.finfo(torch.float32).eps
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_do_not_change_one_another(dtype: torch.dtype, device: str) -> None:
    x, weight, bias = _case(70, 50, 320, dtype, device)
    together = few_rows_linear(x, weight, bias)
    for count in (1, 2, 8, 9, 17, 40):
        assert torch.equal(few_rows_linear(x[:count], weight, bias), together[:count])
        assert torch.equal(few_rows_linear(x[70 - count :], weight, bias), together[70 - count :])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "shape",
    [
        *((4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)),  # 0.6B
        *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),  # 8B
        *((2560, 2048), (22016, 2048), (2048, 11008), (896, 896), (4864, 896), (896, 4864)),
    ],
)
@pytest.mark.usefixtures("uncut")
def test_library_and_kernel_agree(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Every number of rows up to 300, and larger ones, with a bias and without."""
    x, weight, bias = _case(2050, *shape, dtype, "cuda")
    assert disagreement(weight) is None
    multiply = InvariantProduct(weight)
    for own in (None, bias):
        wanted = few_rows_linear(x, weight, own)
        differing = [
            count
            for count in (*range(1, 301), 384, 511, 512, 513, 768, 1000, 1024, 1500, 2048, 2050)
            if not torch.equal(multiply(x[:count], own), wanted[:count])
        ]
        assert not differing


@pytest.mark.gpu
@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize("shape", [(151936, 1024), (128256, 4096)])
def test_heads_agree(shape: tuple[int, int]) -> None:
    x, weight, _ = _case(512, *shape, torch.bfloat16, "cuda")
    wanted = few_rows_linear(x, weight, out_dtype=torch.float32)
    for count in (1, 2, 7, 16, 33, 64, 65, 100, 128, 200, 256, 300, 512):
        out = InvariantProduct(weight)(x[:count], out_dtype=torch.float32)
        assert torch.equal(out, wanted[:count]), count
        library = torch.mm(x[:count], weight.t(), out_dtype=torch.float32)
        assert torch.equal(library, wanted[:count]), count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 64), (768, 256), (512, 1024), (1000, 1536)])
def test_rows_on_a_cpu_do_not_change_one_another(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight, bias = _case(50, *shape, dtype, "cpu")
    multiply = InvariantProduct(weight)
    together = multiply(x, bias)
    bound = 8 * shape[1] * torch.finfo(dtype).eps
    wanted = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(together.double(), wanted, rtol=0, atol=bound)
    for count in (1, 2, 3, 7, 8, 9, 31):
        for first in (0, 1, 5, 19):
            some = multiply(x[first : first + count], bias)
            assert torch.equal(some, together[first : first + count])


@pytest.mark.gpu
@pytest.mark.usefixtures("uncut")
@pytest.mark.parametrize("shape", [(97, 32), (32, 48), (48, 32), (64, 80), (1000, 100)])
def test_shapes_of_which_the_library_has_other_bits_are_left_to_the_kernel(
    shape: tuple[int, int],
) -> None:
    x, weight, bias = _case(300, *shape, torch.bfloat16, "cuda")
    multiply, wanted = InvariantProduct(weight), few_rows_linear(x, weight, bias)
    for count in (1, 64, 65, 100, 200, 300):
        assert torch.equal(multiply(x[:count], bias), wanted[:count])
