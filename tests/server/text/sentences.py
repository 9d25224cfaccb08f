"""Texts that are hard to cut."""

from __future__ import annotations

from server.text.tokenizer import FastTokenizer
from tests.fakes import byte_backend
from tests.server.text.backends import sentencepiece_backend

BYTE, SENTENCE = FastTokenizer(byte_backend()), FastTokenizer(sentencepiece_backend())
