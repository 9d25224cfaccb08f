"""What one server knows of prompts that are read: frames, labels' ids, shared beginnings."""

from __future__ import annotations

from server.conversation.parsing.parsers import Parsers
from server.conversation.template import ChatTemplate
from server.scoring.frames import ReplyFrames
from server.scoring.label_texts import LabelTexts
from server.text.shared_prefix import PrefixTokenizer
from server.text.tokenizer import Tokenizer


class PromptReaders:
    """The parts by which prompts are made and read.

    Attributes:
        frames: what the chat template writes around a message.
        labels: ids of labels after a prompt.
        prefixes: tokenizes prompts that begin alike.
        min_tokens: a lower bound of a text's tokens, known without tokenizing it.
    """

    def __init__(self, template: ChatTemplate, parsers: Parsers, tokenizer: Tokenizer) -> None:
        self.frames = ReplyFrames(template, parsers)
        self.labels = LabelTexts(tokenizer)
        self.prefixes = PrefixTokenizer(tokenizer)
        self.min_tokens = tokenizer.min_tokens
