"""The format of thoughts that a template shows."""

from __future__ import annotations

import re

from server.conversation.parsing.format import ReasoningFormat
from server.conversation.parsing.learning.assemble import LEARNED
from server.conversation.parsing.learning.atoms import atoms, common_start
from server.conversation.parsing.learning.probe import ANSWER, NAMES, THOUGHT, Prober, probe_calls

_TAG = re.compile(r"<[^<>\s]*>")
_BRACKETS = re.compile(r"\[[^\[\]\n]+\]")


def reasoning_of(prober: Prober) -> ReasoningFormat | None:
    """The format of thoughts; None where the template shows none, or nothing ends them."""
    for calls in ([], probe_calls(1, prober.style)):
        for turn in (prober.turn, prober.answered_turn):
            text = turn(ANSWER, calls, thought=THOUGHT)
            if text is not None and THOUGHT in text:
                before, _, following = text.partition(THOUGHT)
                begin = _begin(prober, before)
                between = re.split(f"{ANSWER}|{NAMES[0]}", following)
                if len(between) > 1 and begin and (end := _end(begin, between[0])):
                    rest = between[0].strip()[len(end) :].strip()
                    is_content = following[len(between[0]) :].startswith(ANSWER)
                    return ReasoningFormat(
                        names=(LEARNED,),
                        recognised_by=(),
                        begin=begin,
                        end=end,
                        strays=(rest,) if rest and is_content else (),
                    )
    return None


def _begin(prober: Prober, before: str) -> str:
    """The marker that opens thoughts: what no reply without them has, or what a prompt ends in."""
    head = (prober.turn(ANSWER) or "").partition(ANSWER)[0]
    prompt = prober.prompt_end
    shared = max((common_start(before, own) for own in (prompt, head)), key=len)
    if begin := before[len(shared) :].strip():
        return begin
    if (
        prompt.startswith(before)
        and (rest := prompt[len(before) :].strip())
        and _TAG.search(rest) is None
    ):
        return rest  # words that lead to thoughts, which are not in a history
    own = atoms(before.rstrip())
    for count in range(1, len(own) + 1):
        begin = "".join(own[-count:])
        if begin[0] in "<[" and before.count(begin) == 1:
            return begin
    return ""


def _end(begin: str, between: str) -> str:
    """The marker that closes thoughts: as many tags as open them."""
    if (brackets := _BRACKETS.match(between.strip())) is not None:
        return brackets.group()
    count = max(len(_TAG.findall(begin)), 1)
    pieces = atoms(between.strip())
    tags = [i for i, piece in enumerate(pieces) if _TAG.fullmatch(piece)]
    if not tags or tags[0]:
        return ""
    return "".join(pieces[: tags[min(count, len(tags)) - 1] + 1])
