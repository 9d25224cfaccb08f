"""The rounds of an engine process over a runner without a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.contracts.control import AnyCommand, ControlReply, ControlRequest
from engine.control.command_queue import CommandQueue
from engine.messages.request import ScoringRequest
from engine.messages.step_output import Finish
from tests.engine.scoring.scoring_fake import make_engine
from tests.engine.traffic import FRONTEND, Inbox, request


class Loop:
    """The rounds of the engine process: commands, then a step."""

    def __init__(self, **engine: Any) -> None:
        self.engine, self.runner = make_engine(**engine)
        self.inbox = Inbox()
        self.replies: list[ControlReply] = []
        self.commands = CommandQueue(self.engine.held, lambda _, reply: self.replies.append(reply))
        self.scores: list[Finish] = []

    def send(self, command: AnyCommand) -> None:
        self.commands.submit(FRONTEND, ControlRequest(len(self.replies), command))

    def submit(self, handle: int, prompt: list[int], **fields: Any) -> None:
        self.engine.submit(FRONTEND, request(handle, prompt, **fields))

    def score(self, handle: int, query_len: int) -> None:
        query = np.arange(1, 1 + query_len, dtype=np.int32)
        one = np.array([1], dtype=np.int32)
        asked = ScoringRequest(
            handle=handle,
            query_token_ids=query,
            item_token_ids=one,
            item_lens=one,
            num_read=one,
            id_lists=np.array([[3]], dtype=np.int32),
        )
        self.engine.score(FRONTEND, asked)

    def round(self) -> None:
        self.commands.run_due()
        for _, output in self.engine.step():
            self.inbox.read(output)
            self.scores += [scores.finish for scores in output.item_scores]
        self.engine.check()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.round()

    def settle(self) -> None:
        """Go on until there is nothing to do, as the process does before it waits."""
        for _ in range(5000):
            if not (self.engine.has_work or self.commands.is_due):
                return
            self.round()
        raise AssertionError("the engine does not come to rest")

    def last(self) -> ControlReply:
        self.settle()
        return self.replies[-1]
