"""What the trainings of heads that draft for the demo model share: data, loss and loop.

Half of the batches are what the target writes when it goes on from pieces of the corpus, for that
is what the head will draft. The others are, in turn, windows of the corpus, windows of dialogues,
and windows of the corpus as long as the context: most are short, for a draft step costs as much as
all keys a window has.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.acceptance import continue_prompts
from demo.corpus import collect, read_archive
from demo.dialogue_batches import learned_dialogues
from demo.head_run import HeadSettings
from demo.llama import CONTEXT_TOKENS, load_model
from demo.tokens import EncodedCorpus, encode_corpus, training_batches
from demo.train import rate_factor

PROMPT_TOKENS = 64
WINDOW_TOKENS = 512
WRITING_TEMPERATURES = (0.0, 0.7, 1.0, 1.0)  # a quarter of the windows each


def draft_loss(
    output: torch.Tensor,
    output_matrix: torch.Tensor,
    target_logits: torch.Tensor,
    overlap_weight: float,
) -> torch.Tensor:
    """Loss of each of N outputs [N, H] against the target's logits [N, V].

    Cross entropy of the target's distribution, and refused mass, float32 [N].
    """
    log_q = (output @ output_matrix.T).float().log_softmax(-1)
    p = target_logits.float().softmax(-1)
    entropy = -(p * log_q).sum(-1)
    refused = 1.0 - torch.minimum(p, log_q.exp()).sum(-1)
    return entropy + overlap_weight * refused


def build_optimizers(head: nn.Module, settings: HeadSettings) -> list[torch.optim.Optimizer]:
    """Make the optimizers: Muon for matrices, AdamW for norms."""
    matrices = [p for p in head.parameters() if p.ndim == 2]
    others = [p for p in head.parameters() if p.ndim != 2]
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=settings.weight_decay),
        torch.optim.AdamW(others, lr=settings.vector_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def write_windows(
    target: LlamaForCausalLM,
    corpus: EncodedCorpus,
    settings: HeadSettings,
    window_tokens: int = WINDOW_TOKENS,
) -> torch.Tensor:
    """Let the target write windows of text, int64 [written_windows, window_tokens + 1]."""
    generator = torch.Generator().manual_seed(settings.seed)
    pieces = training_batches(
        corpus.training, PROMPT_TOKENS - 1, settings.written_windows, generator
    )
    prompts = next(pieces).to(target.device)
    temperatures = torch.tensor(WRITING_TEMPERATURES, device=target.device)
    return continue_prompts(
        target,
        prompts,
        window_tokens + 1 - PROMPT_TOKENS,
        temperatures.repeat(-(-len(prompts) // len(temperatures)))[: len(prompts)],
        torch.Generator(target.device).manual_seed(settings.seed),
    ).cpu()


def dialogue_documents(tokenizer: Tokenizer, settings: HeadSettings) -> list[torch.Tensor]:
    """Ids of dialogues, one int64 [length] tensor each."""
    found = learned_dialogues(tokenizer, settings.seed, CONTEXT_TOKENS)
    return [torch.tensor(next(found).ids) for _ in range(settings.dialogues)]


def batches(
    corpus: EncodedCorpus,
    dialogues: list[torch.Tensor],
    written: torch.Tensor,
    settings: HeadSettings,
) -> Iterator[torch.Tensor]:
    """Endless batches of `batch_tokens`: the target's text, and other text in windows."""
    generator = torch.Generator().manual_seed(settings.seed)

    def cut(documents: list[torch.Tensor], length: int) -> Iterator[torch.Tensor]:
        num_windows = settings.batch_tokens // length
        return training_batches(documents, length, num_windows, generator)

    others = itertools.cycle(
        (
            cut(corpus.training, WINDOW_TOKENS),
            cut(dialogues, WINDOW_TOKENS),
            cut(corpus.training, CONTEXT_TOKENS),
        )
    )
    while True:
        order = torch.randperm(len(written), generator=generator)
        for picked in torch.split(order, settings.batch_tokens // WINDOW_TOKENS):
            yield written[picked]
            yield next(next(others))


def train(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    head: nn.Module,
    data: Iterator[torch.Tensor],
    settings: HeadSettings,
    *,
    in_bfloat16: bool = False,
) -> float:
    """Run all steps, changing the head in place; returns the seconds it took.

    Args:
        loss_of: the mean loss over windows [B, T + 1].
        in_bfloat16: products are made in bfloat16.
    """
    device = next(head.parameters()).device
    autocast = functools.partial(torch.autocast, device.type, torch.bfloat16, in_bfloat16)
    optimizers = build_optimizers(head, settings)
    factor = functools.partial(rate_factor, settings=settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    started = time.monotonic()
    for step in range(1, settings.steps + 1):
        windows = next(data).to(device, non_blocking=True)
        with autocast():
            loss = loss_of(windows)
        torch.autograd.backward(loss)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        head.zero_grad()
        if step % max(1, settings.steps // 20) < 2:  # one of the corpus, one of its own text
            seconds = time.monotonic() - started
            print(f"step {step}: loss {loss.item():.4f}, {seconds:.0f} s", flush=True)
    return time.monotonic() - started


Settings = TypeVar("Settings", bound=HeadSettings)


def parse_arguments(
    what: str, folder: Path, settings: type[Settings]
) -> tuple[argparse.Namespace, Settings]:
    """Parse the flags: files, and one flag for each field of the settings.

    Args:
        folder: where the head is written by default.
    """
    parser = argparse.ArgumentParser(description=f"Train the demo model's {what}.")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="the target's folder")
    parser.add_argument("--start", type=Path, help="folder of a head to go on from")
    parser.add_argument("--bfloat16", action="store_true", help="as on a GPU, on a CPU that has it")
    parser.add_argument("--output", type=Path, default=folder, help="folder to write")
    for field in fields(settings):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    args = parser.parse_args()
    names = [field.name for field in fields(settings)]
    return args, settings(**{name: getattr(args, name) for name in names})


class Trained(NamedTuple):
    """What a run worked with, and the seconds it took."""

    corpus: EncodedCorpus
    seconds: float
    hardware: str


def run(
    args: argparse.Namespace,
    settings: HeadSettings,
    head: nn.Module,
    make_loss: Callable[[LlamaForCausalLM], Callable[[torch.Tensor], torch.Tensor]],
) -> Trained:
    """Train a head, in place, as flags say.

    Args:
        make_loss: of the target; the mean loss over windows [B, T + 1].
    """
    corpus = read_archive(args.corpus) if args.corpus else collect()
    target, tokenizer = load_model(args.model)
    encoded, device = encode_corpus(tokenizer, corpus), target.device
    head.to(device)
    in_bfloat16 = device.type == "cuda" or args.bfloat16
    with torch.autocast(device.type, torch.bfloat16, in_bfloat16):
        written = write_windows(target, encoded, settings)
    data = batches(encoded, dialogue_documents(tokenizer, settings), written, settings)
    seconds = train(make_loss(target), head, data, settings, in_bfloat16=in_bfloat16)
    args.output.mkdir(parents=True, exist_ok=True)
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    return Trained(encoded, seconds, hardware)
