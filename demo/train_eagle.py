"""Train the demo model's EAGLE head: the trained target and the standard library in, a folder out.

    python -m demo.train_eagle --corpus stdlib.tar.xz     # on one GPU, about three minutes

Half of the batches are what the target writes when it goes on from pieces of the corpus, for that
is what the head will draft. The others are, in turn, windows of the corpus, windows of dialogues,
and windows of the corpus as long as the context: most are short, for a draft step costs as much as
all keys a window has.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import smooth_l1_loss
from transformers import LlamaForCausalLM

from demo import EAGLE_FOLDER, MODEL_FOLDER
from demo.acceptance import continue_prompts
from demo.corpus import collect, read_archive
from demo.dialogue_batches import learned_dialogues
from demo.eagle_card import write_card
from demo.head import TrainableEagleHead, head_config, load_head, save_head
from demo.head_run import HeadRun, HeadSettings
from demo.llama import CONTEXT_TOKENS, load_model
from demo.tokens import EncodedCorpus, encode_corpus, training_batches
from demo.train import rate_factor

PROMPT_TOKENS = 64
WINDOW_TOKENS = 512
WRITING_TEMPERATURES = (0.0, 0.7, 1.0, 1.0)  # a quarter of the windows each


def depth_loss(
    output: torch.Tensor,
    output_matrix: torch.Tensor,
    target_logits: torch.Tensor,
    features: torch.Tensor,
    overlap_weight: float,
    feature_weight: float,
) -> torch.Tensor:
    """Loss of each of N outputs [N, H] of one draft step against the target's [N, V] and [N, H].

    Cross entropy of the target's distribution, refused mass and distance of features, float32 [N].
    """
    log_q = (output @ output_matrix.T).float().log_softmax(-1)
    p = target_logits.float().softmax(-1)
    entropy = -(p * log_q).sum(-1)
    refused = 1.0 - torch.minimum(p, log_q.exp()).sum(-1)
    distance = smooth_l1_loss(output.float(), features.float(), reduction="none").mean(-1)
    return entropy + overlap_weight * refused + feature_weight * distance


class HeadTrainer:
    """Loss of a head over windows of text; the target stays as it is."""

    def __init__(
        self, target: LlamaForCausalLM, head: TrainableEagleHead, settings: HeadSettings
    ) -> None:
        self._target = target.eval().requires_grad_(False)
        self._head = head
        self._settings = settings
        on_gpu = target.device.type == "cuda"
        self._depth_loss = torch.compile(depth_loss, dynamic=False) if on_gpu else depth_loss

    def __call__(self, windows: torch.Tensor) -> torch.Tensor:
        """Mean loss over [B, T + 1] ids."""
        settings, target = self._settings, self._target
        with torch.no_grad():
            features = target.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
            embeddings = target.model.embed_tokens(windows[:, 1:]).to(features.dtype)
            # The token at i + 1: the last position has nothing to learn from.
            expected = features.roll(-1, dims=1).flatten(0, 1)
            matrix = target.lm_head.weight.to(features.dtype)
            logits = expected @ matrix.T
        place = torch.arange(features.shape[1], device=features.device)
        total, weight = torch.zeros((), device=features.device), 1.0
        outputs = self._head.rollout(embeddings, features, settings.draft_steps)
        for j, output in enumerate(outputs):
            losses = self._depth_loss(
                output.flatten(0, 1).to(features.dtype),
                matrix,
                logits,
                expected,
                settings.overlap_weight,
                settings.feature_weight,
            )
            counted = (place >= j) & (place < len(place) - 1)
            total = total + weight * losses.view(len(windows), -1)[:, counted].mean()
            weight *= settings.step_weight
        return total


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
    trainer: HeadTrainer,
    head: TrainableEagleHead,
    data: Iterator[torch.Tensor],
    settings: HeadSettings,
    *,
    in_bfloat16: bool = False,
) -> float:
    """Run all steps, changing the head in place; returns the seconds it took.

    Args:
        in_bfloat16: products are made in bfloat16.
    """
    device = head.fc.weight.device
    autocast = functools.partial(torch.autocast, device.type, torch.bfloat16, in_bfloat16)
    optimizers = build_optimizers(head, settings)
    factor = functools.partial(rate_factor, settings=settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    started = time.monotonic()
    for step in range(1, settings.steps + 1):
        windows = next(data).to(device, non_blocking=True)
        with autocast():
            loss = trainer(windows)
        torch.autograd.backward(loss)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        head.zero_grad()
        if step % max(1, settings.steps // 20) < 2:  # one of the corpus, one of its own text
            seconds = time.monotonic() - started
            print(f"step {step}: loss {loss.item():.4f}, {seconds:.0f} s", flush=True)
    return time.monotonic() - started


def parse_arguments() -> tuple[argparse.Namespace, HeadSettings]:
    """Parse the flags: files, and one flag for each field of HeadSettings."""
    parser = argparse.ArgumentParser(description="Train the demo model's EAGLE head.")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="the target's folder")
    parser.add_argument("--start", type=Path, help="folder of a head to go on from")
    parser.add_argument("--bfloat16", action="store_true", help="as on a GPU, on a CPU that has it")
    parser.add_argument("--output", type=Path, default=EAGLE_FOLDER, help="folder to write")
    for field in fields(HeadSettings):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    args = parser.parse_args()
    names = [field.name for field in fields(HeadSettings)]
    return args, HeadSettings(**{name: getattr(args, name) for name in names})


def main() -> None:
    args, settings = parse_arguments()
    corpus = read_archive(args.corpus) if args.corpus else collect()
    target, tokenizer = load_model(args.model)
    encoded, device = encode_corpus(tokenizer, corpus), target.device
    torch.manual_seed(settings.seed)
    head = (load_head(args.start) if args.start else TrainableEagleHead(head_config())).to(device)
    in_bfloat16 = device.type == "cuda" or args.bfloat16
    with torch.autocast(device.type, torch.bfloat16, in_bfloat16):
        written = write_windows(target, encoded, settings)
    data = batches(encoded, dialogue_documents(tokenizer, settings), written, settings)
    trainer = HeadTrainer(target, head, settings)
    seconds = train(trainer, head, data, settings, in_bfloat16=in_bfloat16)
    args.output.mkdir(parents=True, exist_ok=True)
    save_head(head, args.output)
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    start = f"the head in `{args.start}`" if args.start else "random weights"
    run = HeadRun(settings, start, seconds, hardware, torch.__version__)
    write_card(args.output, args.model, encoded, run)


if __name__ == "__main__":
    main()
