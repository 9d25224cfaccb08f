"""Train the demo model: standard library in, a folder that transformers loads out.

python -m demo.train --collect stdlib.tar.xz     # write the corpus of this interpreter
python -m demo.train --corpus stdlib.tar.xz      # train on one GPU, about six minutes
"""

import argparse
import functools
import time
from dataclasses import fields
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.card import write_card
from demo.corpus import collect, read_archive, write_archive
from demo.evaluate import bits_per_byte
from demo.head_run import HeadSettings
from demo.llama import CONTEXT_TOKENS, build_model, save_model
from demo.run import Run, TrainingSettings
from demo.tokens import (
    EncodedCorpus,
    encode_corpus,
    save_tokenizer,
    train_tokenizer,
    training_batches,
)


def build_optimizers(model: nn.Module, settings: TrainingSettings) -> list[torch.optim.Optimizer]:
    """Make the optimizers: Muon for the layers' matrices, AdamW for (tied) embedding and norms."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and ".layers." in name]
    others = [p for name, p in named if p.ndim != 2 or ".layers." not in name]
    decay = settings.weight_decay
    return [
        torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=decay),
        torch.optim.AdamW(others, lr=settings.vector_rate, betas=(0.9, 0.95), weight_decay=decay),
    ]


def rate_factor(step: int, settings: TrainingSettings | HeadSettings) -> float:
    """The rate of a step as a share of its peak: up in the warm-up, flat, down in the cool-down."""
    done = step / settings.steps
    rising = (step + 1) / (settings.warmup * settings.steps)
    return min(1.0, rising, (1.0 - done) / settings.cooldown)


def window_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Mean nats a token over [batch, context + 1] ids."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def train(model: LlamaForCausalLM, corpus: EncodedCorpus, settings: TrainingSettings) -> Run:
    """Run all steps, changing the model in place."""
    on_gpu = model.device.type == "cuda"
    autocast = functools.partial(torch.autocast, model.device.type, torch.bfloat16, on_gpu)
    loss_of = torch.compile(window_loss) if on_gpu else window_loss
    optimizers = build_optimizers(model, settings)
    factor = functools.partial(rate_factor, settings=settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    generator = torch.Generator().manual_seed(settings.seed)
    batches = training_batches(corpus.training, CONTEXT_TOKENS, settings.batch_size, generator)
    curve: list[tuple[int, float]] = []
    started = time.monotonic()
    for step in range(1, settings.steps + 1):
        model.train()
        with autocast():
            loss = loss_of(model, next(batches).to(model.device))
        torch.autograd.backward(loss)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        if step % max(1, settings.steps // settings.evaluations) == 0:
            with autocast():
                held_out = bits_per_byte(model, corpus, CONTEXT_TOKENS)
            curve.append((step, held_out))
            report = f"step {step}: {loss.item():.3f} nats a token, held-out {held_out:.4f} bits"
            print(f"{report} a byte, {time.monotonic() - started:.0f} s", flush=True)
    hardware = torch.cuda.get_device_name() if on_gpu else "CPU"
    return Run(settings, curve, time.monotonic() - started, hardware)


def parse_arguments() -> tuple[argparse.Namespace, TrainingSettings]:
    """Parse the flags: files, and one flag for each field of TrainingSettings."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--collect", type=Path, help="only write the corpus archive to this file")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--output", type=Path, default=MODEL_FOLDER, help="folder to write")
    for field in fields(TrainingSettings):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default)
    args = parser.parse_args()
    return args, TrainingSettings(
        **{field.name: getattr(args, field.name) for field in fields(TrainingSettings)}
    )


def main() -> None:
    args, settings = parse_arguments()
    corpus = read_archive(args.corpus) if args.corpus else collect()
    if args.collect:
        print(f"{write_archive(corpus, args.collect)}  {args.collect}")
        return
    args.output.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(corpus.training())
    save_tokenizer(tokenizer, args.output, CONTEXT_TOKENS)
    encoded = encode_corpus(tokenizer, corpus)
    print(f"{len(encoded.training)} documents, {encoded.training_tokens} tokens", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(device, settings.seed, settings.dropout)
    run = train(model, encoded, settings)
    save_model(model, args.output)
    write_card(args.output, corpus, encoded, run)


if __name__ == "__main__":
    main()
