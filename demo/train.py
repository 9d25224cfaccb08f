"""Train the demo model: standard library and dialogues in, a folder that transformers loads out.

    python -m demo.train --collect stdlib.tar.xz     # write the corpus of this interpreter
    python -m demo.train --corpus stdlib.tar.xz      # train on one GPU, some ten minutes

Each step sees windows of the library's text, some dialogues (`demo.dialogues`) and some decisions
(`demo.decisions`), of which the replies alone are learned. A model that knows the text already
learns these in a few minutes; `--teacher` keeps what it knows of the text:

    python -m demo.train --corpus stdlib.tar.xz --start demo/model --teacher demo/model \
        --seconds 85 --eager --batch-size 24 --window-tokens 1024 --num-dialogues 32 \
        --num-decisions 192 --decision-weight 1 --dropout 0 --matrix-rate 0.003 \
        --vector-rate 0.0015 --weight-decay 0 --workers 12
"""

import argparse
import functools
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.card import write_card
from demo.corpus import collect, read_archive, write_archive
from demo.dialogue_batches import DialogueBatch, dialogue_batches, drawn_ahead
from demo.evaluate import bits_per_byte
from demo.head_run import HeadSettings
from demo.llama import CONTEXT_TOKENS, build_model, save_model
from demo.run import Run, TrainingSettings
from demo.tokens import (
    FIRST_MARKER_ID,
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


def rate_factor(step: float, settings: TrainingSettings | HeadSettings) -> float:
    """The rate of a step as a share of its peak: up in the warm-up, flat, down in the cool-down."""
    done = step / settings.steps
    rising = (step + 1) / (settings.warmup * settings.steps)
    return min(1.0, rising, (1.0 - done) / settings.cooldown)


def window_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Mean nats a token over [batch, context + 1] ids."""
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def taught_loss(model: nn.Module, windows: torch.Tensor, teacher: nn.Module) -> torch.Tensor:
    """Mean cross entropy of a teacher's distribution over [batch, context + 1] ids, in nats.

    Unlike the text's own it has no gradient where the model is the teacher, so little text is
    enough to keep what was known. What the teacher says of a chat's markers is left out.
    """
    with torch.no_grad():
        known = teacher(input_ids=windows[:, :-1], use_cache=False).logits.float()
        known[..., FIRST_MARKER_ID:] = -torch.inf
        wanted = known.softmax(-1).flatten(0, 1)
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), wanted)


def replies_loss(model: LlamaForCausalLM, batch: DialogueBatch) -> torch.Tensor:
    """Weighted nats of the replies' tokens in a batch of dialogues; the rest costs no logits."""
    batch = batch.to(model.device)
    hidden = model.model(input_ids=batch.inputs, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[batch.places])
    return batch.weights @ cross_entropy(logits.float(), batch.targets, reduction="none")


class Trainer:
    """Computes gradients of text and dialogues, step by step.

    Args:
        in_bfloat16: products are made in bfloat16.
        compiles: what text costs is compiled, which pays where there are thousands of steps.
        teacher: whose distribution of text is learned, instead of the text.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        corpus: EncodedCorpus,
        tokenizer: Tokenizer,
        settings: TrainingSettings,
        *,
        in_bfloat16: bool,
        compiles: bool = False,
        teacher: nn.Module | None = None,
    ) -> None:
        device = model.device.type
        self.autocast = functools.partial(torch.autocast, device, torch.bfloat16, in_bfloat16)
        self._model = model

        def text_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
            if teacher is None:
                return window_loss(model, windows)
            return taught_loss(model, windows, teacher)

        self._text_loss = torch.compile(text_loss) if compiles else text_loss
        generator = torch.Generator().manual_seed(settings.seed)
        self._windows = training_batches(
            corpus.training, settings.window_tokens, settings.batch_size, generator
        )

        def draw(seed: int) -> Iterator[DialogueBatch]:
            return dialogue_batches(tokenizer, seed, settings, CONTEXT_TOKENS)

        self._dialogues = drawn_ahead(draw, settings.seed, settings.workers)

    def add_gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Add one step's gradients; returns the losses of text and of replies."""
        self._model.train()
        with self.autocast():
            text = self._text_loss(self._model, next(self._windows).to(self._model.device))
        torch.autograd.backward(text)
        with self.autocast():
            replies = replies_loss(self._model, next(self._dialogues))
        torch.autograd.backward(replies)
        return text, replies


class Clock:
    """How far a run is, in steps of its schedule: those made, or its share of `seconds`."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._started

    def at(self, step: int) -> float:
        """Where in the schedule the run is that has made so many steps."""
        settings = self._settings
        return settings.steps * self.seconds / settings.seconds if settings.seconds else step


def train(
    model: LlamaForCausalLM,
    corpus: EncodedCorpus,
    trainer: Trainer,
    settings: TrainingSettings,
    start: str,
) -> Run:
    """Run all steps, changing the model in place."""
    optimizers = build_optimizers(model, settings)
    clock, step = Clock(settings), 0

    def factor(step: int) -> float:
        return max(rate_factor(clock.at(step), settings), 0.0)

    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    curve: list[tuple[int, float]] = []
    while clock.at(step) < settings.steps:
        text, replies = trainer.add_gradients()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        step += 1
        if clock.at(step) * settings.evaluations >= settings.steps * (len(curve) + 1):
            with trainer.autocast():
                held_out = bits_per_byte(model, corpus, CONTEXT_TOKENS)
            curve.append((step, held_out))
            report = f"step {step}: {text.item():.3f} nats a token, replies {replies.item():.3f}"
            seconds = clock.seconds
            print(f"{report}, held-out {held_out:.4f} bits a byte, {seconds:.0f} s", flush=True)
    hardware = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    return Run(settings, step, curve, clock.seconds, hardware, start)


def parse_arguments() -> tuple[argparse.Namespace, TrainingSettings]:
    """Parse the flags: files, and one flag for each field of TrainingSettings."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--collect", type=Path, help="only write the corpus archive to this file")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--start", type=Path, help="folder of a model to go on from")
    parser.add_argument("--teacher", type=Path, help="folder of a model whose text is to be kept")
    parser.add_argument("--bfloat16", action="store_true", help="as on a GPU, on a CPU that has it")
    parser.add_argument("--eager", action="store_true", help="compile nothing, for short runs")
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
    if args.start:
        tokenizer = Tokenizer.from_file(str(args.start / "tokenizer.json"))
    else:
        tokenizer = train_tokenizer(corpus.training())
    encoded = encode_corpus(tokenizer, corpus)
    print(f"{len(encoded.training)} documents, {encoded.training_tokens} tokens", flush=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_model(device, settings.seed, settings.dropout)
    teacher = build_model(device, 0, 0.0).eval() if args.teacher else None
    for folder, each in ((args.start, model), (args.teacher, teacher)):
        if each is not None and folder is not None:
            loaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
            each.load_state_dict(loaded.state_dict())
    trainer = Trainer(
        model,
        encoded,
        tokenizer,
        settings,
        in_bfloat16=device.type == "cuda" or args.bfloat16,
        compiles=device.type == "cuda" and not args.eager,
        teacher=teacher,
    )
    start = f"the model in `{args.start}`" if args.start else "random weights"
    run = train(model, encoded, trainer, settings, start)
    save_model(model, args.output)
    save_tokenizer(tokenizer, args.output, CONTEXT_TOKENS)
    write_card(args.output, corpus, encoded, run)


if __name__ == "__main__":
    main()
