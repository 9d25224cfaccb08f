"""What every conversation is read against."""

from __future__ import annotations

from dataclasses import dataclass

from server.conversation.parsing.parsers import Parsers
from server.conversation.template import ChatTemplate
from server.generation.served import ServedModel


@dataclass(frozen=True, kw_only=True)
class ServedChatModel(ServedModel):
    """A model that is served, with its chat template and the formats of its replies."""

    template: ChatTemplate
    parsers: Parsers
