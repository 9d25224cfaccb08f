"""Texts of labels as ids after a prompt, with the demo model's tokenizer."""

from __future__ import annotations

from string import ascii_uppercase

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from demo import MODEL_FOLDER
from server.scoring.label_texts import LabelTexts, UnreadableLabelError, ended, tree_of
from server.text.tokenizer import FastTokenizer, load_tokenizer

END = "one option only.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def texts() -> LabelTexts:
    return LabelTexts(load_tokenizer(str(MODEL_FOLDER)))


def test_ids_are_those_that_a_label_adds_to_the_prompt(texts: LabelTexts) -> None:
    tokenizer = load_tokenizer(str(MODEL_FOLDER))
    whole = tokenizer.encode(END + "billing", add_special_tokens=False)
    before = tokenizer.encode(END, add_special_tokens=False)
    assert texts.ids(END, ["billing", "A"]) == [tuple(whole[len(before) :]), (33,)]


def test_a_label_that_changes_the_prompt_s_end_cannot_be_read(texts: LabelTexts) -> None:
    with pytest.raises(UnreadableLabelError, match="together with the prompt's end") as caught:
        texts.ids("Answer: ret", ["A", "urn"])
    assert caught.value.index in (0, 1)
    with pytest.raises(UnreadableLabelError, match="no tokens"):
        texts.ids(END, [""])


@pytest.mark.parametrize(
    ("tail", "end"),
    [
        ("<|im_end|>\n<|im_start|>assistant\n\n", "<|im_start|>assistant\n\n"),
        ("\nassistant:", "assistant:"),
        ("\nassistant\n\n", "assistant\n\n"),
        ("[/INST]", "Question: Is it late?[/INST]"),
    ],
)
def test_labels_are_tokenized_with_the_end_that_prompts_share(
    texts: LabelTexts, tail: str, end: str
) -> None:
    content = "A state.\nQuestion: Is it late?"
    assert texts.end(content, tail) == end
    tokenizer = load_tokenizer(str(MODEL_FOLDER))
    before = tokenizer.encode(content + tail, add_special_tokens=False)
    for label in ("yes", "A", "17"):
        whole = tokenizer.encode(content + tail + label, add_special_tokens=False)
        assert texts.ids(end, [label]) == [tuple(whole[len(before) :])]


def test_codes_are_letters_and_then_pairs(texts: LabelTexts) -> None:
    assert texts.codes(END, "", 3) == ("A", "B", "C")
    assert texts.codes(END, "", 26)[-1] == "Z"
    pairs = texts.codes(END, "", 40)
    assert len(set(pairs)) == 40
    assert all(len(ids) == 1 for ids in texts.ids(END, pairs)), "there are enough such pairs"


def test_codes_are_lone_pairs_as_far_as_there_are_enough(texts: LabelTexts) -> None:
    """All of them, if need be; one more option, and pairs are of the fewest letters."""
    every = [first + second for first in ascii_uppercase for second in ascii_uppercase]
    lone = [pair for pair, ids in zip(every, texts.ids(END, every), strict=True) if len(ids) == 1]
    assert 26 < len(lone) < 26 * 26
    assert list(texts.codes(END, "", len(lone))) == lone
    more = texts.codes(END, "", len(lone) + 1)
    assert len(set(more)) == len(lone) + 1
    num_letters = len(set("".join(more)))
    assert (num_letters - 1) ** 2 < len(more) <= num_letters**2


def test_255_codes_with_a_tokenizer_of_bytes() -> None:
    vocab = {chr(i): i for i in range(256)}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = LabelTexts(FastTokenizer(backend))
    pairs = texts.codes(":", "", 255)
    assert len(set(pairs)) == 255
    ids = texts.ids(":", pairs)
    assert {len(own) for own in ids} == {2}
    tree = tree_of(tuple(ids))
    assert len(tree.id_lists) == 17, "the root, and sixteen first letters"


def test_options_that_begin_others_are_ended() -> None:
    assert ended([(1,), (1, 2), (3,)], (9,)) == [(1, 9), (1, 2), (3,)]
    assert ended([(1,), (2,)], (9,)) == [(1,), (2,)]
    tree_of(tuple(ended([(1,), (1, 2), (1, 2, 3)], (9,))))
