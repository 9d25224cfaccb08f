"""transformers beside the engine: its weights, its decode step, its opinion of greedy tokens."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from engine.contracts.named_weights import TensorInfo
from engine.models.decoder import Decoder
from engine.models.families.table import decoder_spec
from engine.models.formats.reader import WeightReader
from engine.models.weights.shares import OwnedPart
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import Asked, Unread
from server.bench.workloads import Body


class ModuleWeights:
    """WeightSource of a transformers model's own parameters."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._parameters = dict(module.named_parameters())
        self.asked: Asked = {}
        self.unread = Unread()

    checkpoint: Checkpoint | None = None

    def fill(self, target: torch.Tensor, name: str) -> None:
        self.asked[name] = TensorInfo(tuple(target.shape), target.dtype)
        target.copy_(self._parameters[name].data)

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        self.asked[name] = TensorInfo(part.whole_shape(target.shape), target.dtype)
        target.copy_(part.of_whole(self._parameters[name].data))

    def shape(self, name: str) -> tuple[int, ...] | None:
        parameter = self._parameters.get(name)
        return None if parameter is None else tuple(parameter.shape)

    def finish(self) -> None:
        pass


class _Copied:
    """WeightSource of a server's random weights, entered into a transformers model as well."""

    def __init__(self, source: DummyWeights, module: torch.nn.Module) -> None:
        self._source = source
        self._parameters = dict(module.named_parameters())
        self.asked, self.unread = source.asked, source.unread

    checkpoint: Checkpoint | None = None

    def fill(self, target: torch.Tensor, name: str) -> None:
        self._source.fill(target, name)
        self._parameters[name].data.copy_(target)

    def fill_part(self, target: torch.Tensor, name: str, part: OwnedPart) -> None:
        raise AssertionError("one rank has all of it")

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self._source.shape(name)

    def finish(self) -> None:
        pass


def batch_generate(
    model: str, device: torch.device, dtype: torch.dtype
) -> Callable[[list[Body]], None]:
    """The function that runs requests as one batch through transformers' own greedy `generate`."""
    peer: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(device).eval()

    def run(bodies: list[Body]) -> None:
        ids = torch.tensor([body["prompt"] for body in bodies], device=device)
        count = bodies[0]["max_tokens"]
        peer.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )

    return run


def random_module(folder: str, device: torch.device) -> Any:
    """A bfloat16 transformers model of a folder's config.json, on the GPU."""
    torch.set_default_dtype(torch.bfloat16)
    with device:
        module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    torch.set_default_dtype(torch.float32)
    return module


@torch.no_grad()
def dummy_peer(folder: str, device: torch.device) -> Any:
    """transformers' model with the weights of a server started with `--load-format dummy`."""
    module = random_module(folder, device)
    spec = decoder_spec(module.config)
    source = _Copied(DummyWeights(spec.initializer_range, device), module)
    Decoder(spec, WeightReader.of(source, torch.bfloat16, device), 64)
    return module


@torch.inference_mode()
def peer_step_ms(peer: Any, rows: int, context: int) -> float:
    """Milliseconds of one of transformers' own decode steps with its dynamic cache, on the GPU."""
    cache = DynamicCache()
    ids = torch.randint(1000, 100_000, (rows, context), device=peer.device)
    # By place: transformers 5.24 calls the argument `cache`, others `past_key_values`.
    peer(ids, None, None, cache, logits_to_keep=1)
    times = []
    for _ in range(8):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        peer(ids[:, :1], None, None, cache, logits_to_keep=1).logits.argmax(-1)
        after.record()
        torch.cuda.synchronize()
        times.append(float(before.elapsed_time(after)))
    return round(statistics.median(times), 3)


@torch.inference_mode()
def agreement(peer: Any, bodies: list[Body], tokens: dict[int, list[int]]) -> dict[str, Any]:
    """Measure how far greedy tokens are from transformers' choice, given the tokens before them.

    Returns:
        worst_gap: to the highest logit, in standard deviations of the logits.
        same_top: share of tokens that are the highest itself. tokens: how many.
    """
    worst, same, count = 0.0, 0, 0
    for handle, body in enumerate(bodies):
        ids = torch.tensor([body["prompt"] + tokens[handle]], device=peer.device)
        start = len(body["prompt"]) - 1
        logits = peer(ids).logits[0, start:-1].float()
        chosen = logits.gather(1, ids[0, start + 1 :, None])[:, 0]
        gaps = logits.max(dim=-1).values - chosen
        worst = max(worst, float((gaps / logits.std(dim=-1)).max()))
        same += int((gaps == 0).sum())
        count += len(gaps)
    return {"worst_gap": round(worst, 4), "same_top": round(same / count, 4), "tokens": count}
