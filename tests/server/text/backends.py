"""Tokenizers of kinds that the byte tokenizer of `tests.fakes` is not."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models


def sentencepiece_backend() -> Tokenizer:
    """Llama-2's decoder: "▁" for a space, byte fallback, one leading space stripped."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {word: 256 + i for i, word in enumerate(["▁", "▁the", "he", "▁é", "日本", "a", "▁▁"])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>"])
    return backend
