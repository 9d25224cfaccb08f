"""Train the demo model: standard library and dialogues in, a folder that transformers loads out.

    python -m demo.train --collect stdlib.tar.xz     # write the corpus of this interpreter
    python -m demo.train --corpus stdlib.tar.xz      # train on one GPU, some ten minutes

Each step sees windows of the library's text, some dialogues (`demo.dialogues`) and some decisions
(`demo.decisions`), of which the replies alone are learned. A model that knows the text already
learns these in a few minutes; `--teacher` keeps what it knows of the text:

    python -m demo.train --corpus stdlib.tar.xz --start demo/model --teacher demo/model \
        --steps 1200 --batch-size 16 --window-tokens 1024 --num-dialogues 32 --num-decisions 128 \
        --dropout 0 --matrix-rate 0.004 --vector-rate 0.002 --weight-decay 0 --workers 6
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
from demo.dialogue_batches import (
    DialogueBatch,
    decision_batches,
    dialogue_batches,
    drawn_ahead,
)
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


def rate_factor(step: int, settings: TrainingSettings | HeadSettings) -> float:
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
    """Mean nats a token of the replies in a batch of dialogues; the rest costs no logits."""
    batch = batch.to(model.device)
    hidden = model.model(input_ids=batch.inputs, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[batch.places])
    return cross_entropy(logits.float(), batch.targets)


class Trainer:
    """Computes gradients of text and dialogues, step by step.

    Args:
        in_bfloat16: products are made in bfloat16.
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
        teacher: nn.Module | None = None,
    ) -> None:
        device = model.device.type
        self.autocast = functools.partial(torch.autocast, device, torch.bfloat16, in_bfloat16)
        self._model = model
        self._settings = settings

        def text_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
            if teacher is None:
                return window_loss(model, windows)
            return taught_loss(model, windows, teacher)

        self._text_loss = torch.compile(text_loss) if device == "cuda" else text_loss
        generator = torch.Generator().manual_seed(settings.seed)
        self._windows = training_batches(
            corpus.training, settings.window_tokens, settings.batch_size, generator
        )
        self._replies = [
            (settings.dialogue_weight, self._dialogues(tokenizer)),
            (settings.decision_weight, self._decisions(tokenizer)),
        ]

    def _dialogues(self, tokenizer: Tokenizer) -> Iterator[DialogueBatch]:
        settings = self._settings

        def draw(seed: int) -> Iterator[DialogueBatch]:
            return dialogue_batches(tokenizer, seed, settings.num_dialogues, CONTEXT_TOKENS)

        return drawn_ahead(draw, settings.seed, settings.workers)

    def _decisions(self, tokenizer: Tokenizer) -> Iterator[DialogueBatch]:
        settings = self._settings

        def draw(seed: int) -> Iterator[DialogueBatch]:
            return decision_batches(tokenizer, seed, settings.num_decisions)

        return drawn_ahead(draw, settings.seed, settings.workers)

    def add_gradients(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Add one step's gradients; returns the losses of text, dialogues and decisions."""
        self._model.train()
        with self.autocast():
            text = self._text_loss(self._model, next(self._windows).to(self._model.device))
        torch.autograd.backward(text)
        losses = [text]
        for weight, batches in self._replies:
            with self.autocast():
                losses.append(replies_loss(self._model, next(batches)))
            torch.autograd.backward(weight * losses[-1])
        text, dialogues, decisions = losses
        return text, dialogues, decisions


def train(
    model: LlamaForCausalLM,
    corpus: EncodedCorpus,
    trainer: Trainer,
    settings: TrainingSettings,
    start: str,
) -> Run:
    """Run all steps, changing the model in place."""
    optimizers = build_optimizers(model, settings)
    factor = functools.partial(rate_factor, settings=settings)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    curve: list[tuple[int, float]] = []
    started = time.monotonic()
    for step in range(1, settings.steps + 1):
        text, dialogues, decisions = trainer.add_gradients()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        if step % max(1, settings.steps // settings.evaluations) == 0:
            with trainer.autocast():
                held_out = bits_per_byte(model, corpus, CONTEXT_TOKENS)
            curve.append((step, held_out))
            report = f"step {step}: {text.item():.3f} nats a token, dialogues "
            report += f"{dialogues.item():.3f}, decisions {decisions.item():.3f}"
            seconds = time.monotonic() - started
            print(f"{report}, held-out {held_out:.4f} bits a byte, {seconds:.0f} s", flush=True)
    hardware = torch.cuda.get_device_name() if model.device.type == "cuda" else "CPU"
    return Run(settings, curve, time.monotonic() - started, hardware, start)


def parse_arguments() -> tuple[argparse.Namespace, TrainingSettings]:
    """Parse the flags: files, and one flag for each field of TrainingSettings."""
    parser = argparse.ArgumentParser(description="Train the demo model.")
    parser.add_argument("--collect", type=Path, help="only write the corpus archive to this file")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--start", type=Path, help="folder of a model to go on from")
    parser.add_argument("--teacher", type=Path, help="folder of a model whose text is to be kept")
    parser.add_argument("--bfloat16", action="store_true", help="as on a GPU, on a CPU that has it")
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
        teacher=teacher,
    )
    start = f"the model in `{args.start}`" if args.start else "random weights"
    run = train(model, encoded, trainer, settings, start)
    save_model(model, args.output)
    save_tokenizer(tokenizer, args.output, CONTEXT_TOKENS)
    write_card(args.output, corpus, encoded, run)


if __name__ == "__main__":
    main()
