"""Files of replies: what decides tokens is read, what cannot be audited is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.errors import ConfigError
from sampling.params import SamplingParams
from server.audit.parameters import read_body, sampling_params
from server.audit.records import read_choices
from tests.server.audit.files import Json, completion, read, served, write

SEEDED = {"prompt": "x", "seed": 5}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT = {"messages": [{"role": "user", "content": "x"}], "seed": 1}


def test_a_completion(tmp_path: Path) -> None:
    body = {**SEEDED, "temperature": 0.5, "top_k": 9, "min_tokens": 2, "stop_token_ids": [4]}
    body |= {"logit_bias": {"3": 1.5}, "bad_words": ["ab"], "max_tokens": 3, "n": 1, "user": "me"}
    (choice,) = read(tmp_path, body, completion([1, 2, 3]))
    assert (choice.prompt, choice.output, choice.choice) == ([7, 8], [1, 2, 3], 0)
    params = choice.params
    assert (params.seed, params.temperature, params.top_k, params.min_tokens) == (5, 0.5, 9, 2)
    assert params.stop_token_ids == (0, 2, 4)
    assert params.logit_bias == {3: 1.5}
    assert params.bad_words == ((97, 98),)
    assert choice.refusal is None


def test_choices_are_numbered_within_their_prompt(tmp_path: Path) -> None:
    body = {**SEEDED, "prompt": ["a", "b"], "n": 3}
    choices = read(tmp_path, body, completion(*[[1]] * 6))
    assert [choice.index for choice in choices] == list(range(6))
    assert [choice.choice for choice in choices] == [0, 1, 2, 0, 1, 2]


def test_defaults_of_the_server_hold_where_a_field_is_left_out(tmp_path: Path) -> None:
    defaults = {"temperature": 0.7, "top_k": 20}
    body = {**SEEDED, "top_k": 3, "ignore_eos": True}
    (choice,) = read(tmp_path, body, completion([1]), defaults=defaults)
    assert (choice.params.temperature, choice.params.top_k) == (0.7, 3)
    assert choice.params.stop_token_ids == ()


def test_a_chat_has_its_prompt_at_the_top_and_its_logprobs_by_token(tmp_path: Path) -> None:
    tokens = [{"token_id": 4, "logprob": -0.5, "rank": 1, "part": "markup"}]
    logprobs = {"tokens": tokens, "content": []}
    choice = {"index": 0, "message": {}, "token_ids": [4], "logprobs": logprobs}
    reply = {"prompt_token_ids": [1, 2, 3], "choices": [choice]}
    (found,) = read(tmp_path, CHAT, reply)
    assert (found.prompt, found.output) == ([1, 2, 3], [4])
    assert found.logprobs == [[(4, -0.5), (4, -0.5)]]


def chunks() -> list[Json]:
    first = {"index": 0, "token_ids": [4], "prompt_token_ids": [7, 8], "finish_reason": None}
    first["logprobs"] = {"token_logprobs": [-0.1], "mode": "raw_logprobs"}
    second = {"index": 1, "token_ids": [9], "prompt_token_ids": [7, 8], "logprobs": None}
    third = {"index": 0, "token_ids": [5, 6], "logprobs": {"token_logprobs": [-0.2, -0.3]}}
    parts = [[first], [second], [{**third, "finish_reason": "length"}], []]
    return [{"id": "a", "choices": part} for part in parts]


@pytest.mark.parametrize("as_text", [False, True])
def test_streams_are_joined(as_text: bool, tmp_path: Path) -> None:
    reply: Any = chunks()
    if as_text:
        frames = [f"data: {orjson.dumps(chunk).decode()}\n\n" for chunk in reply]
        reply = ": ping\n\n" + "".join(frames) + "data: [DONE]\n\n"
    choices = read(tmp_path, {**SEEDED, "n": 2, "stream": True}, reply)
    assert [choice.output for choice in choices] == [[4, 5, 6], [9]]
    assert [choice.prompt for choice in choices] == [[7, 8]] * 2
    first, second = (choice.logprobs for choice in choices)
    assert first is not None
    assert [row[0] for row in first] == [(4, -0.1), (5, -0.2), (6, -0.3)]
    assert second is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"prompt": "x"}, "no seed"),
        ({"prompt": "x", "seed": -1}, "no seed"),
        ({**SEEDED, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({**SEEDED, "response_format": {"type": "json_object"}}, "response_format"),
        ({**SEEDED, "regex": "a"}, "structured_outputs"),
        ({**SEEDED, "grammar": 'root ::= "a"'}, "structured_outputs"),
        ({**CHAT, "tools": [TOOL]}, "tools"),
        ({**CHAT, "thinking_token_budget": 8}, "thinking_token_budget"),
        ({**CHAT, "reasoning": {"max_tokens": 8}}, "thinking_token_budget"),
        ({**SEEDED, "top_p": 7}, "top_p"),
        ({**SEEDED, "top_k": "many"}, "no such request"),
        ({**SEEDED, "seed": "5"}, "no such request"),
        ({**SEEDED, "n": 1.5}, "no such request"),
        ({**SEEDED, "bad_words": "xyz"}, "no such request"),
        ({"seed": 5}, "no such request"),
        ({**SEEDED, "model": "adapter"}, "its model adapter is an adapter"),
    ],
)
def test_what_decides_tokens_and_is_not_derived_is_refused(
    body: Json, words: str, tmp_path: Path
) -> None:
    reply = completion([1], prompt_token_ids=[7, 8])
    (choice,) = read(tmp_path, body, reply, adapters=frozenset({"adapter"}))
    assert choice.refusal is not None
    assert words in choice.refusal


def test_neutral_values_of_what_is_refused_are_not(tmp_path: Path) -> None:
    body = {**CHAT, "response_format": {"type": "text"}, "tools": [TOOL], "tool_choice": "none"}
    body |= {"structured_outputs": None, "typical_p": 1.0}
    assert read(tmp_path, body, completion([1]))[0].refusal is None
    assert read(tmp_path, {"prompt": "x", "temperature": 0}, completion([1]))[0].refusal is None


EVERY_PARAMETER: Json = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.9,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": -1.0,
    "frequency_penalty": 2.0,
    "seed": 5,
    "logit_bias": {"5": -3},
    "allowed_token_ids": [1, 2],
    "bad_words": ["ab"],
    "min_tokens": 1,
    "stop_token_ids": [9],
}
"""A body with a value of each, of which none is neutral."""


def test_every_parameter_that_decides_tokens_is_derived() -> None:
    """What is left out would be audited as neutral, and an honest reply called another's."""
    body = read_body({"prompt": "x", **EVERY_PARAMETER})
    derived, neutral = sampling_params(body, served(eos_token_ids=())), SamplingParams()
    same = {
        name
        for name in SamplingParams.__struct_fields__
        if getattr(derived, name) == getattr(neutral, name)
    }
    reports = {"logprobs", "logprob_token_ids", "logprobs_mode", "kept_logprob"}
    assert same == reports | {"constrained"}  # refused by the fields that have grammars


@pytest.mark.parametrize("shows", ["metrics", "origins"])
@pytest.mark.parametrize(
    ("keeps_draws", "temperature", "words"),
    [
        (None, 1.0, "--speculative-config"),
        (False, 1.0, '"gumbel"'),
        (True, 1.0, None),
        (False, 0.0, None),
    ],
)
def test_drafts(
    shows: str, keeps_draws: bool | None, temperature: float, words: str | None, tmp_path: Path
) -> None:
    reply = completion([1])
    if shows == "metrics":
        reply["metrics"] = {"num_drafts": 3}
    else:
        reply["choices"][0]["token_origins"] = ["accepted"]
    body = {**SEEDED, "temperature": temperature}
    (choice,) = read(tmp_path, body, reply, keeps_draws=keeps_draws)
    assert (choice.refusal is None) == (words is None)
    assert words is None or words in (choice.refusal or "")


def test_ids_that_were_not_asked_for_are_missed_by_name(tmp_path: Path) -> None:
    reply = completion([1])
    del reply["choices"][0]["prompt_token_ids"]
    refusal = read(tmp_path, SEEDED, reply)[0].refusal
    assert refusal == "it has no prompt_token_ids: ask with return_token_ids"
    assert read(tmp_path, {**SEEDED, "prompt": [3, 4]}, reply)[0].prompt == [3, 4]
    del reply["choices"][0]["token_ids"]
    assert "no token_ids" in (read(tmp_path, SEEDED, reply)[0].refusal or "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2: it is no JSON"),
        (b'{"request": {"temperature": NaN}, "response": 5}', "no JSON, which has no NaN"),
        (b'{"request": {}}', 'line 2: it must be an object with "request" and "response"'),
        (b'{"request": {}, "response": 5}', "line 2: the reply is no object"),
        (
            b'{"request": {}, "response": {"error": {"message": "no"}}}',
            "line 2: the reply is an er",
        ),
        (b'{"request": {}, "response": {}}', "line 2: the reply has no choices"),
        (b'{"request": {}, "response": {"choices": []}}', "line 2: the reply has no choices"),
        (b'{"request": [], "response": {"choices": [{}]}}', "line 2: the request is no object"),
        (
            b'{"request": {}, "response": [{"choices": [{"index": 0, "logprobs": [1]}]}, '
            b'{"choices": [{"index": 0, "logprobs": {"tokens": []}}]}]}',
            "line 2: the chunks are no stream's",
        ),
    ],
)
def test_other_lines_are_refused(line: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(ConfigError, match=words):
        list(read_choices(path, served()))
    path.write_bytes(b" \n")
    with pytest.raises(ConfigError, match="is empty"):
        list(read_choices(path, served()))
    with pytest.raises(ConfigError, match="cannot be read"):
        list(read_choices(tmp_path / "none.jsonl", served()))


@pytest.mark.parametrize(
    ("body", "choice"),
    [
        ({}, {"index": "0"}),
        ({}, {"index": None}),
        ({}, {"token_ids": [1.5]}),
        ({"n": "two"}, {}),
        ({"seed": "five"}, {}),
        ({"temperature": "warm"}, {}),
        ({"logit_bias": [1]}, {}),
        ({}, {"token_ids": ["a"]}),
        ({}, {"prompt_token_ids": [{}]}),
    ],
)
def test_what_is_malformed_is_refused_and_leaves_other_lines_theirs(
    tmp_path: Path, body: Json, choice: Json
) -> None:
    broken = completion([1])
    broken["choices"][0] |= choice
    path = write(
        tmp_path / "file.jsonl", ({**SEEDED, **body}, broken), (SEEDED, completion([1, 2]))
    )
    first, second = read_choices(path, served())
    assert first.refusal is not None
    assert (second.line, second.output, second.refusal) == (2, [1, 2], None)


def test_ids_that_were_asked_are_those_of_the_reply(tmp_path: Path) -> None:
    (choice,) = read(tmp_path, {"prompt": [7, 8], "seed": 5}, completion([1]))
    assert choice.refusal is None
    (choice,) = read(tmp_path, {"prompt": [7, 9], "seed": 5}, completion([1]))
    assert choice.refusal == "its prompt_token_ids are not the ids that were asked"


def test_drafts_accepted_at_a_rate_are_refused_for_greedy_rows_too(tmp_path: Path) -> None:
    reply, body = completion([1], metrics={"num_drafts": 3}), {"prompt": "x", "temperature": 0}
    for at_rates in (False, True):
        given = {"keeps_draws": False, "accepts_at_rates": at_rates}
        (choice,) = read(tmp_path, body, reply, **given)
        assert (choice.refusal is not None) == at_rates


@pytest.mark.parametrize(
    ("body", "index", "words"),
    [
        ({"n": 2}, 2, "its index is 2, of 2 choices"),
        ({"prompt": ["a", "b", "c"]}, 3, "its index is 3, of 3 choices"),
        ({}, -1, "its index is -1, of 1 choices"),
        ({"max_tokens": 1}, 0, "it has 2 tokens, and max_tokens is 1"),
        ({"max_tokens": 2, "prompt": [6, 7, 8], "truncate_prompt_tokens": 2}, 0, None),
        ({"prompt": [7, 8, 9], "truncate_prompt_tokens": 2}, 0, "not the ids that were asked"),
        (
            {"prompt": [7, 8, 9], "truncate_prompt_tokens": 2, "truncation_side": "right"},
            *(0, None),
        ),
        ({"max_tokens": 2, "n": 3, "prompt": [[7, 8], [7, 8]]}, 5, None),
        ({"n": 3, "prompt": [[7, 8], [7, 9]]}, 5, "not the ids that were asked"),
    ],
)
def test_choices_that_were_not_asked_for_are_refused(
    body: Json, index: int, words: str | None, tmp_path: Path
) -> None:
    reply = completion([1, 2])
    reply["choices"][0]["index"] = index
    (choice,) = read(tmp_path, {**SEEDED, **body}, reply)
    assert (choice.refusal is None) == (words is None)
    assert words is None or words in (choice.refusal or "")


def test_of_two_choices_with_one_index_the_second_is_refused(tmp_path: Path) -> None:
    reply = completion([1], [1])
    reply["choices"][1]["index"] = 0
    first, second = read(tmp_path, {**SEEDED, "n": 2}, reply)
    assert first.refusal is None
    assert second.refusal == "its reply has two choices with index 0"


def test_fields_by_other_names_are_those_of_the_server(tmp_path: Path) -> None:
    body = {"prompt": "x", "random_seed": 7, "n_predict": 2}
    choices = [read(tmp_path, body, completion([1] * count))[0] for count in (2, 3)]
    assert choices[0].params.seed == 7
    assert [choice.refusal for choice in choices] == [None, "it has 3 tokens, and max_tokens is 2"]


def test_a_stream_s_text_may_hold_any_end_of_line_and_be_cut_off(tmp_path: Path) -> None:
    chunk = {"index": 0, "text": "a\u2028b\u0085c", "token_ids": [4], "prompt_token_ids": [7, 8]}
    line = f"data: {orjson.dumps({'choices': [chunk]}).decode()}"
    for text in (f"{line}\n\n{line}\n\n", f'{line}\r\n\r\n{line}\r\n\r\ndata: {{"cho'):
        (choice,) = read(tmp_path, {**SEEDED, "stream": True}, text)
        assert (choice.output, choice.refusal) == ([4, 4], None)
    with pytest.raises(ConfigError, match="no JSON"):
        read(tmp_path, SEEDED, f"data: {{\n\n{line}\n\n")
