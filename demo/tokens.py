"""The demo model's byte-level BPE, and streams of its ids to train on.

The special token `<|endoftext|>` (id 0) opens every document and so also ends the one before it.
The tokenizer never adds it: encoding a prompt gives the prompt's ids alone, and a caller who means
"the start of a file" writes `<|endoftext|>` in front. The last ids are the markers of chats.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo.chat import CHAT_TEMPLATE, MARKERS, TURN_END
from demo.corpus import Corpus

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
VOCAB_SIZE = 8192
FIRST_MARKER_ID = VOCAB_SIZE - len(MARKERS)
TURN_END_ID = FIRST_MARKER_ID + MARKERS.index(TURN_END)
# A line break is a piece of its own and so is the indentation after it: a prompt may end with
# either and still be cut as the training text was. Words, up to three digits and runs of signs take
# the space before them along; other spaces come last.
PIECES = r"\n|(?<=\n)[ \t]+| ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|[^\S\n]+(?!\S)|\s"


@dataclass(frozen=True)
class EncodedCorpus:
    """Ids of both parts, one int64 [length] tensor a document, its separator first."""

    training: list[torch.Tensor]
    held_out: list[torch.Tensor]
    held_out_bytes: int

    @property
    def training_tokens(self) -> int:
        return sum(len(document) for document in self.training)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Learn the vocabulary; all 256 bytes are in it, so any text can be written."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=FIRST_MARKER_ID,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(MARKERS))
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context_tokens: int) -> None:
    """Write tokenizer.json (compact) and the tokenizer_config.json that transformers reads."""
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "padding_side": "left",
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode_documents(tokenizer: Tokenizer, texts: list[str]) -> list[torch.Tensor]:
    """Ids of each text with `<|endoftext|>` in front: one int64 [length] tensor a document."""
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [torch.tensor([END_OF_TEXT_ID, *encoding.ids]) for encoding in encodings]


def encode_corpus(tokenizer: Tokenizer, corpus: Corpus) -> EncodedCorpus:
    """Both parts of the corpus as ids."""
    held_out = corpus.held_out()
    return EncodedCorpus(
        encode_documents(tokenizer, corpus.training()),
        encode_documents(tokenizer, held_out),
        sum(len(text.encode()) for text in held_out),
    )


def training_batches(
    documents: list[torch.Tensor], context_tokens: int, batch_size: int, generator: torch.Generator
) -> Iterator[torch.Tensor]:
    """Endless [batch_size, context_tokens + 1] windows: inputs and, shifted by one, targets.

    Each epoch joins all documents in a new order, drops a random start and cuts the rest into
    windows that share one token, taken in a random order. What no longer fills a batch is dropped.
    """
    while True:
        order = torch.randperm(len(documents), generator=generator).tolist()
        stream = torch.cat([documents[i] for i in order])
        start = int(torch.randint(context_tokens, (1,), generator=generator))
        windows = stream[start:].unfold(0, context_tokens + 1, context_tokens)
        shuffled = torch.randperm(len(windows), generator=generator)
        for picked in torch.split(shuffled, batch_size):
            if len(picked) == batch_size:
                yield windows[picked]
