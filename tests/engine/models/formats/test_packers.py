"""The packers of these tests beside the tools' own, where those are installed: `pip install
--no-deps auto-gptq gptqmodel` is enough, none of their extensions is run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.engine.models.formats.packers import awq, gptq, round_weight

pytestmark = pytest.mark.slow


def module_of(package: str, path: str) -> ModuleType:
    """One file of a package, without the package around it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(found.origin).parent / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq(symmetric: bool) -> None:
    """AutoGPTQ's packer and its unpacking product."""
    tool = module_of("auto_gptq", "nn_modules/qlinear/qlinear_cuda.py")
    linear = torch.nn.Linear(64, 32, bias=False)
    rounded = round_weight(linear.weight.data, 32, symmetric=symmetric)
    rounded.zeros.clip(1, out=rounded.zeros)  # AutoGPTQ spoils its words where a zero point is 0
    linear.weight.data = rounded.values()
    layer = tool.QuantLinear(4, 32, 64, 32, bias=False)
    scales, zeros = torch.from_numpy(rounded.scales).float(), torch.from_numpy(rounded.zeros)
    layer.pack(linear, scales, zeros.float())
    ours = gptq(rounded._replace(q=rounded.q))
    for name, tensor in ours.items():
        assert torch.equal(getattr(layer, name).to(tensor.dtype), tensor), name
    x = torch.randn(3, 64)
    torch.testing.assert_close(layer.float()(x), linear(x), rtol=1e-5, atol=1e-5)


def test_awq() -> None:
    """AutoAWQ's packing, as GPTQModel carries it on."""
    tool = module_of("gptqmodel", "quantization/awq/utils/packing_utils.py")
    rounded = round_weight(torch.randn(32, 64), 32, symmetric=False)
    q, zeros = torch.from_numpy(rounded.q.T.copy()), torch.from_numpy(rounded.zeros.T.copy())
    qweight, qzeros = tool.pack_awq(q, zeros, 4)
    ours = awq(rounded)
    assert torch.equal(ours["qweight"], qweight)
    assert torch.equal(ours["qzeros"], qzeros)
