"""What a replica sends of an entry is all that its step said of it."""

from __future__ import annotations

import numpy as np

from engine.messages.step_output import Finish, StepOutput
from engine.submission import entries_of
from server.fleet.messages import entry_output
from tests.engine.logprob_cases import logprob_arrays


def test_an_entry_is_sent_with_all_that_its_step_said_of_it() -> None:
    logprobs = logprob_arrays(3, 2, 1)
    step = StepOutput(
        handles=np.array([4, 5]),
        choices=np.array([0, 1], dtype=np.int32),
        num_new=np.array([1, 2], dtype=np.int32),
        finish=np.array([Finish.RUNNING, Finish.ERROR], dtype=np.uint8),
        num_cached=np.array([3, 6], dtype=np.int32),
        token_ids=np.array([7, 8, 9], dtype=np.int32),
        logprobs=logprobs,
        origins=np.array([1, 2, 3], dtype=np.uint8),
        errors={4: "other", 5: "why"},
        drafts=np.arange(6).reshape(2, 3),
        times=np.arange(6.0).reshape(2, 3),
        weight_version="v2",
        weight_tag="f00d",
    )
    wanted = entries_of(step)[1]
    sent = entry_output(wanted, 70)
    [entry] = entries_of(sent)
    assert (sent.handles.tolist(), sent.errors) == ([70], {70: "why"})
    assert entry.token_ids.tolist() == [8, 9]
    assert (entry.choice, entry.finish, entry.num_cached) == (1, Finish.ERROR, 6)
    assert (sent.weight_version, sent.weight_tag) == ("v2", "f00d")
    for name in ("origins", "drafts", "times"):
        np.testing.assert_array_equal(getattr(entry, name), getattr(wanted, name))
    assert entry.logprobs is not None
    np.testing.assert_array_equal(entry.logprobs.chosen, logprobs.chosen[1:])
