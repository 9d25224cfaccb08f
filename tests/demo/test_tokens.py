"""The shipped vocabulary and the windows cut from token streams."""

import random

import pytest
import torch
from tokenizers import Tokenizer

from demo import MODEL_FOLDER
from demo.tokens import END_OF_TEXT, END_OF_TEXT_ID, VOCAB_SIZE, training_batches


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


def test_vocabulary_is_full_and_has_every_byte(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    one_byte = [token for token in tokenizer.get_vocab() if len(token) == 1]
    assert len(one_byte) == 256


def test_any_text_round_trips(tokenizer: Tokenizer) -> None:
    draw = random.Random(0)
    code_points = [*range(0x800), *range(0x1F300, 0x1F700), 0x2028, 0xFEFF, 0xFFFD, 0x10FFFF]
    texts = ["".join(map(chr, draw.choices(code_points, k=200))) for _ in range(200)]
    texts += ["", " ", "\n", "\t\n  \r\n x", "a  =  1\n\n\n    b", "e\u0301 \xa0\u3000"]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_nothing_is_added_to_a_prompt(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("import os", add_special_tokens=False).ids
    assert tokenizer.encode("import os", add_special_tokens=True).ids == plain
    assert tokenizer.encode(END_OF_TEXT + "import os").ids == [END_OF_TEXT_ID, *plain]


@pytest.mark.parametrize("cut", ["def f(x):\n", "def f(x):\n    ", "def f(x):\n    return"])
def test_a_prompt_may_end_at_a_line_break_or_an_indentation(tokenizer: Tokenizer, cut: str) -> None:
    whole = tokenizer.encode("def f(x):\n    return x\n").ids
    prompt = tokenizer.encode(cut).ids
    assert whole[: len(prompt)] == prompt


def test_windows_cover_an_epoch_once_and_join_at_one_token() -> None:
    documents = [torch.arange(first, first + 50) for first in range(0, 500, 50)]
    batches = training_batches(documents, 8, 4, torch.Generator().manual_seed(1))
    num_batches = (500 - 8) // 8 // 4 - 1  # surely of the first epoch
    windows = torch.cat([next(batches) for _ in range(num_batches)])
    assert windows.shape[1] == 9
    targets = windows[:, 1:].flatten().tolist()
    assert len(set(targets)) == len(targets)


def test_windows_are_a_function_of_the_seed() -> None:
    documents = [torch.arange(100), torch.arange(100, 300)]
    first, second = (
        next(training_batches(documents, 16, 4, torch.Generator().manual_seed(3))) for _ in "ab"
    )
    assert torch.equal(first, second)
