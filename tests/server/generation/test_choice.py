"""One choice fed by hand: what each piece carries, and where a choice ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages.step_output import Finish, PromptLogprobs
from server.generation.choice import MOST_LONE, Piece, ReplyChoice
from tests.fakes import EOS
from tests.server.generation.pieces import entry, form, reply_choice, values


def piece_of(choice: ReplyChoice) -> Piece:
    piece = choice.take()
    assert piece is not None
    return piece


class TestPieces:
    def test_a_plain_reply_is_one_piece_and_its_text_is_made_at_the_end(self) -> None:
        choice = reply_choice(form())
        assert not choice.feed(entry(b"he"))
        assert choice.num_waiting == 2
        assert choice.feed(entry(b"y", Finish.LENGTH))
        piece = piece_of(choice)
        assert (piece.first, piece.text, piece.token_ids) == (True, "hey", list(b"hey"))
        assert (piece.finish_reason, piece.stop_reason) == ("length", None)
        assert choice.num_waiting == 0

    def test_a_stream_s_pieces_follow_each_other(self) -> None:
        choice = reply_choice(form(stream=True, num_top=0))
        choice.feed(entry(b"ab", logprobs=values(2)))
        first = piece_of(choice)
        choice.feed(entry(b"c", Finish.LENGTH, values(1, first=2)))
        second = piece_of(choice)
        assert [(p.first, p.text, p.starts) for p in (first, second)] == [
            (True, "ab", [0, 1]),
            (False, "c", [2]),
        ]
        assert first.logprobs is not None
        assert second.logprobs is not None
        assert [*first.logprobs.ranks, *second.logprobs.ranks] == [0, 1, 2]
        assert (first.finish_reason, second.finish_reason) == (None, "length")

    def test_nothing_to_give_out_is_no_piece(self) -> None:
        choice = reply_choice(form(stream=True))
        assert choice.take() is None
        choice.feed(entry(b"\xc3"))  # half of a character
        assert choice.take() is None
        choice.feed(entry(b"\xa9"))
        assert piece_of(choice).text == "é"

    def test_reports_of_several_steps_are_given_out_as_if_each_had_been_taken(self) -> None:
        wanted = form(stream=True, num_top=1)
        kept_up, lagging = reply_choice(wanted), reply_choice(wanted)
        pieces = []
        for i, byte in enumerate(b"a\xc3\xa9b"):
            for choice in (kept_up, lagging):
                choice.feed(entry([byte], logprobs=values(3, num_top=1, first=i)))
            pieces.append(piece_of(kept_up))
        found = list(lagging.take_by_token())
        for piece, other in zip(pieces, found, strict=True):
            assert (piece.text, piece.token_ids, piece.starts) == (
                (other.text, other.token_ids, other.starts)
            )
            assert piece.place is not None
            assert other.place is not None
            assert piece.place.arrays.ranks[0] == other.place.arrays.ranks[0]
        assert list(lagging.take_by_token()) == []

    def test_a_stream_that_lags_far_has_one_piece(self) -> None:
        choice = reply_choice(form(stream=True, num_top=0))
        choice.feed(entry(b"a" * (MOST_LONE + 1), logprobs=values(MOST_LONE + 1)))
        assert [len(piece.token_ids) for piece in choice.take_by_token()] == [MOST_LONE + 1]

    def test_a_token_without_text_is_a_piece_where_ids_are_asked(self) -> None:
        choice = reply_choice(form(stream=True, return_token_ids=True))
        choice.feed(entry(b"\xc3"))
        assert (piece_of(choice).text, choice.take()) == ("", None)

    def test_broken_bytes_come_out_at_the_end(self) -> None:
        choice = reply_choice(form(stream=True))
        choice.feed(entry(b"a\xc3", Finish.LENGTH))
        assert piece_of(choice).text == "a\ufffd"

    def test_logprobs_are_as_wide_as_asked_and_no_view_of_the_step_s(self) -> None:
        choice = reply_choice(form(num_top=2, explicit_ids=(7,)))
        step = values(1, num_top=5, num_explicit=3)
        choice.feed(entry(b"a", Finish.LENGTH, step))
        step.chosen[:] = 99
        logprobs = piece_of(choice).logprobs
        assert logprobs is not None
        assert (logprobs.top_ids.shape, logprobs.explicit.shape) == ((1, 2), (1, 1))
        assert logprobs.chosen.tolist() == [0]

    def test_logprobs_nobody_asked_for_are_not_kept(self) -> None:
        """A neighbour in the step asked for them."""
        choice = reply_choice(form())
        choice.feed(entry(b"a", Finish.LENGTH, values(1, num_top=5)))
        assert piece_of(choice).logprobs is None

    def test_origins_go_out_with_their_tokens(self) -> None:
        """A stop string holds some back; a report without origins is of tokens that were drawn."""
        choice = reply_choice(form(["cd"], stream=True, origins=True))
        choice.feed(entry(b"a"))
        choice.feed(entry(b"bc", origins=[1, 3]))
        pieces = [piece_of(choice)]
        choice.feed(entry(b"e", Finish.LENGTH, origins=[2]))
        pieces.append(piece_of(choice))
        assert [(piece.text, piece.origins) for piece in pieces] == [("ab", [0, 1]), ("ce", [3, 2])]

    def test_origins_nobody_asked_for_are_not_kept(self) -> None:
        choice = reply_choice(form())
        choice.feed(entry(b"a", Finish.LENGTH, origins=[1]))
        assert piece_of(choice).origins == []

    def test_what_is_reported_of_the_prompt_goes_with_the_first_piece_alone(self) -> None:
        choice = reply_choice(form(stream=True))
        choice.prompt_logprobs = PromptLogprobs(handle=1, start=1, logprobs=values(3, first=1))
        choice.feed(entry(b"a"))
        assert piece_of(choice).prompt_logprobs is choice.prompt_logprobs
        choice.feed(entry(b"b", Finish.LENGTH))
        assert piece_of(choice).prompt_logprobs is None

    def test_parts_of_what_is_reported_of_the_prompt_that_wait_go_out_as_one(self) -> None:
        choice = reply_choice(form(stream=True))
        for starts in ([1], [3, 5], []):
            choice.prompt_parts += [
                PromptLogprobs(handle=1, start=i, logprobs=values(2, first=i), is_part=True)
                for i in starts
            ]
            piece = choice.take()
            reported = None if piece is None else piece.prompt_logprobs
            ranks = [] if reported is None else reported.logprobs.ranks.tolist()
            assert ranks == [rank for start in starts for rank in (start, start + 1)]
            assert reported is None or reported.start == starts[0]

    def test_parts_that_begin_again_take_the_place_of_those_that_wait(self) -> None:
        """Other weights compute the prompt anew."""
        choice = reply_choice(form(stream=True))
        choice.prompt_parts += [
            PromptLogprobs(handle=1, start=i, logprobs=values(2, first=i), is_part=True)
            for i in (3, 5, 1, 3)
        ]
        reported = piece_of(choice).prompt_logprobs
        assert reported is not None
        assert (reported.start, reported.logprobs.ranks.tolist()) == (1, [1, 2, 3, 4])

    def test_next_token_only_drops_the_token_and_keeps_its_values(self) -> None:
        choice = reply_choice(form(next_token_only=True, explicit_ids=(5,)))
        assert choice.feed(entry([EOS], Finish.STOP, values(1, num_explicit=1, first=3)))
        piece = piece_of(choice)
        assert (piece.text, piece.token_ids, choice.num_generated) == ("", [], 0)
        assert piece.finish_reason == "length"
        assert piece.logprobs is not None
        assert piece.logprobs.explicit.tolist() == [[-3]]

    def test_counts_of_drafts_are_the_latest(self) -> None:
        choice = reply_choice(form())
        choice.feed(entry(b"a", drafts=[1, 2, 2]))
        choice.feed(entry(b"b", drafts=[2, 4, 3]))
        assert choice.drafts is not None
        assert choice.drafts.tolist() == [2, 4, 3]


class TestEnds:
    def test_the_end_of_text_has_no_text_and_no_reason(self) -> None:
        choice = reply_choice(form(num_top=0))
        choice.feed(entry([104, 105, EOS], Finish.STOP, values(3)))
        piece = piece_of(choice)
        assert (piece.text, piece.starts) == ("hi", [0, 1, 2])
        assert (piece.token_ids[-1], piece.finish_reason, piece.stop_reason) == (EOS, "stop", None)

    def test_a_stop_id_is_the_reason_and_shown_on_request(self) -> None:
        for include, text in ((False, "hi"), (True, "hi!")):
            choice = reply_choice(form(include_stop=include))
            choice.feed(entry(b"hi!", Finish.STOP))
            piece = piece_of(choice)
            assert (piece.text, piece.stop_reason) == (text, ord("!"))

    @pytest.mark.parametrize("include", [False, True])
    def test_a_stop_string_over_several_reports(self, include: bool) -> None:
        choice = reply_choice(form(["cd"], stream=True, include_stop=include))
        choice.feed(entry(b"abc"))
        assert piece_of(choice).text == "ab"  # c may begin it
        assert choice.feed(entry(b"de"))
        piece = piece_of(choice)
        assert (piece.text, piece.stop_reason) == ("cd" if include else "", "cd")
        assert piece.token_ids == (list(b"cd") if include else [])
        assert choice.num_generated == 4  # up to the one that completed it

    def test_held_text_comes_out_with_what_follows_or_at_the_end(self) -> None:
        choice = reply_choice(form(["abc"], stream=True))
        choice.feed(entry(b"xab"))
        assert piece_of(choice).text == "x"
        choice.feed(entry(b"a"))
        assert piece_of(choice).text == "ab"  # the a may begin it again
        choice.feed(entry(b"b", Finish.LENGTH))
        assert piece_of(choice).text == "ab"

    def test_min_tokens_puts_stop_strings_off(self) -> None:
        choice = reply_choice(form(["b"], min_tokens=3))
        assert not choice.feed(entry(b"ab"))
        assert not choice.feed(entry(b"b"))
        assert choice.feed(entry(b"b"))
        assert piece_of(choice).text == "abb"

    def test_a_failed_choice_has_not_ended_by_itself(self) -> None:
        choice = reply_choice(form())
        assert not choice.feed(entry(b"a", Finish.NAN))
        assert choice.finish_reason is None


@given(
    st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=8),
    st.lists(st.sampled_from(["ab", "b", "bca", "é", "\ufffd"]), max_size=3),
    st.integers(0, 4),
    st.booleans(),
    st.booleans(),
)
def test_pieces_join_to_what_one_report_gives(
    reports: list[bytes], stops: list[str], min_tokens: int, include: bool, by_token: bool
) -> None:
    """Whatever the reports, however often pieces are taken and of how many tokens."""
    options = {"min_tokens": min_tokens, "include_stop": include, "num_top": 0}
    raw = b"".join(reports)
    whole = reply_choice(form(stops, **options))
    whole.feed(entry(raw, Finish.LENGTH, values(len(raw))))
    want = piece_of(whole)
    choice, fed = reply_choice(form(stops, stream=True, **options)), 0
    pieces: list[Piece] = []
    for i, tokens in enumerate(reports):
        finish = Finish.LENGTH if i == len(reports) - 1 else Finish.RUNNING
        ended = choice.feed(entry(tokens, finish, values(len(tokens), first=fed)))
        fed += len(tokens)
        if by_token:
            pieces += choice.take_by_token()
        elif (piece := choice.take()) is not None:
            pieces.append(piece)
        if ended:
            break
    assert "".join(piece.text for piece in pieces) == want.text
    assert [i for piece in pieces for i in piece.token_ids] == want.token_ids
    assert [start for piece in pieces for start in piece.starts] == want.starts
    ranks = [r for p in pieces if p.logprobs is not None for r in p.logprobs.ranks.tolist()]
    assert ranks == ([] if want.logprobs is None else want.logprobs.ranks.tolist())
    assert choice.num_generated == whole.num_generated
    assert not by_token or max(len(piece.token_ids) for piece in pieces) <= 1
    assert all(piece.finish_reason is None for piece in pieces[:-1])
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == (
        want.finish_reason,
        want.stop_reason,
    )


def test_each_version_of_the_weights_has_its_span_of_the_tokens() -> None:
    """Ends of choices without tokens begin no span; tokens that a stop string drops are in none."""
    choice = reply_choice(form())
    for raw, version in ((b"ab", "default"), (b"c", "default"), (b"de", "v1")):
        choice.feed(entry(raw, version=version))
    choice.feed(entry(b"", Finish.LENGTH, version="v2"))
    spans = piece_of(choice).weight_versions
    assert [(s.version, s.start, s.end) for s in spans] == [("default", 0, 3), ("v1", 3, 5)]
    for first, second in ((b"abc", b"d"), (b"ab", b"cd")):
        cut = reply_choice(form(stops=["cd"]))
        cut.feed(entry(first, version="default"))
        cut.feed(entry(second, version="v1"))
        (span,) = piece_of(cut).weight_versions
        assert (span.version, span.start, span.end) == ("default", 0, 2)
