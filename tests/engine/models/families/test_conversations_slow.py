"""500 conversations with a trained model: prefix caching and drafts change nothing that is read.

Elsewhere a benchmark fell from 25.6 to 8.8 % with both on, which nothing but its score showed. The
model is trained first, so that its own head's drafts are accepted as often as real heads' are.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from demo.dialogues import dialogues
from demo.train_hybrid import encode, save, train
from engine.speculative_config import SpeculativeConfig
from tests.engine.models.families.hybrid_server import Reply, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CONVERSATIONS, TURNS, NEW_TOKENS, STEPS = 500, 3, 10, 150
LOGPROB_ERROR = 1e-5
"""What float32 logprobs may differ by in steps of other sizes, whose sums have other orders."""


class Run(NamedTuple):
    """What conversations got: replies by turn and conversation, and what made them fast."""

    replies: list[list[Reply]]
    num_cached: int
    acceptance: float


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained")
    model, head, loss = train(STEPS)
    assert loss < 2.5, "it learned nothing; characters at random have a loss of 1.5 log(128) = 7.3"
    save(model, head, path)
    return path


def questions() -> list[list[str]]:
    """What is asked in each turn of each conversation."""
    contents = [
        dialogue.content
        for _, dialogue in zip(range(TURNS * CONVERSATIONS), dialogues(7), strict=False)
    ]
    return [contents[turn::TURNS] for turn in range(TURNS)]


def converse(folder: Path, *, prefix_caching: bool, num_drafts: int) -> Run:
    """Hold all conversations, a turn of all at a time."""
    speculation = None
    if num_drafts:
        speculation = SpeculativeConfig(method="mtp", num_speculative_tokens=num_drafts)
    server = serve(
        folder,
        None,
        speculation=speculation,
        num_blocks=4500,
        num_snapshots=2500,
        prefix_caching=prefix_caching,
        max_rows=24,
    )
    texts: list[list[int]] = [[] for _ in range(CONVERSATIONS)]
    turns = []
    for asked in questions():
        texts = [
            text + encode(f"Tell me, please: {question[:14]}.\n")
            for text, question in zip(texts, asked, strict=True)
        ]
        handles = [server.submit(text, max_tokens=NEW_TOKENS) for text in texts]
        while server.engine.has_work:
            server.step()
        turns.append([server.replies[handle] for handle in handles])
        texts = [reply.prompt + reply.tokens for reply in turns[-1]]
    drafts = server.engine.stats().drafts
    acceptance = 0.0 if drafts is None else drafts.num_accepted / drafts.num_drafts
    return Run(turns, sum(reply.num_cached for turn in turns for reply in turn), acceptance)


def test_caches_and_drafts_change_nothing(folder: Path) -> None:
    plain = converse(folder, prefix_caching=False, num_drafts=0)
    assert plain.num_cached == 0
    for prefix_caching, num_drafts in ((True, 0), (False, 3), (True, 3)):
        run = converse(folder, prefix_caching=prefix_caching, num_drafts=num_drafts)
        assert (run.num_cached > CONVERSATIONS * 32) == prefix_caching
        if num_drafts:  # tokens accepted in a step with drafts
            assert run.acceptance > 0.5
        for turn, wanted in zip(run.replies, plain.replies, strict=True):
            for reply, own in zip(turn, wanted, strict=True):
                assert reply.prompt == own.prompt
                assert reply.tokens == own.tokens
                assert reply.logprobs == pytest.approx(own.logprobs, rel=0, abs=LOGPROB_ERROR)
