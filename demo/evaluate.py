"""Bits per byte of complete held-out documents under a sliding window.

Every document is scored by itself, from `<|endoftext|>` to its last token. A window holds 2,048
tokens and moves by half of that; each token is predicted once, in the first window that reaches
it, so with at least 1,024 tokens (or the whole document so far) before it. The sum of -log2 p is
divided by the number of UTF-8 bytes of all documents.

    python -m demo.evaluate --corpus stdlib.tar.xz     # the shipped model's figure
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from demo import MODEL_FOLDER
from demo.corpus import collect, read_archive
from demo.llama import load_model
from demo.tokens import EncodedCorpus, encode_corpus

IGNORED = -100


def scoring_windows(
    document: torch.Tensor, context_tokens: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Cut ids [length] into (inputs, targets), both [context_tokens]; targets name each id once.

    Places after the document's end, and targets that an earlier window scored, are padding.
    """
    num_targets = len(document) - 1
    scored = start = 0
    while scored < num_targets:
        end = min(start + context_tokens, num_targets)
        inputs = torch.zeros(context_tokens, dtype=torch.long)
        targets = torch.full((context_tokens,), IGNORED)
        inputs[: end - start] = document[start:end]
        targets[scored - start : end - start] = document[scored + 1 : end + 1]
        yield inputs, targets
        scored = end
        start += context_tokens // 2


@torch.inference_mode()
def bits_per_byte(
    model: nn.Module, corpus: EncodedCorpus, context_tokens: int, batch_size: int = 16
) -> float:
    """Mean bits the model needs for a byte of the held-out documents."""
    model.eval()
    device = next(model.parameters()).device
    documents = corpus.held_out
    windows = [pair for document in documents for pair in scoring_windows(document, context_tokens)]
    nats = 0.0
    for first in range(0, len(windows), batch_size):
        batch = windows[first : first + batch_size]
        inputs = torch.stack([pair[0] for pair in batch]).to(device)
        targets = torch.stack([pair[1] for pair in batch]).to(device)
        logits = model(input_ids=inputs, use_cache=False).logits  # [batch, context, vocab]
        loss = cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        nats += loss.item()
    return nats / math.log(2) / corpus.held_out_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the model's held-out bits per byte.")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="model folder")
    args = parser.parse_args()
    corpus = read_archive(args.corpus) if args.corpus else collect()
    model, tokenizer = load_model(args.model)
    encoded = encode_corpus(tokenizer, corpus)
    measured = bits_per_byte(model, encoded, model.config.max_position_embeddings)
    print(f"{measured:.4f} bits per byte")


if __name__ == "__main__":
    main()
