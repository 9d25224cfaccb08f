"""The shipped folder: loads as it is, fits its limits, says what its card says."""

import inspect
import json
import platform
import re
import tracemalloc

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.chat import CHAT_TEMPLATE, MARKERS
from demo.corpus import collect, is_held_out
from demo.evaluate import bits_per_byte
from demo.evaluate_dialogues import measure
from demo.tokens import (
    END_OF_TEXT_ID,
    FIRST_MARKER_ID,
    TURN_END_ID,
    VOCAB_SIZE,
    EncodedCorpus,
    encode_corpus,
    encode_documents,
)
from server.conversation.parsing.formats.tagged_json import HERMES
from server.conversation.parsing.formats.thinking import QWEN3
from server.conversation.parsing.recognise import reasoning_format_of, tool_format_of

FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
CARD = (MODEL_FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    loaded = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    assert isinstance(loaded, LlamaForCausalLM)
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))


def card_figure(name: str) -> float:
    match = re.search(rf"\*\*{name}\*\* \| \*\*([0-9.]+)[ %]*\*\*", CARD)
    assert match is not None
    return float(match.group(1))


def bits_of_card() -> float:
    return card_figure("held-out bits per byte")


def calls_of_card() -> float:
    return card_figure("held-out dialogues: right calls and arguments")


def test_folder_holds_these_files_within_the_limit() -> None:
    assert {path.name for path in MODEL_FOLDER.iterdir()} == FILES
    sizes = {path.name: path.stat().st_size for path in MODEL_FOLDER.iterdir()}
    assert sum(sizes.values()) <= 9_500_000  # leaves the head its 2.5 of 12 MB
    assert sizes["tokenizer.json"] <= 300_000


def test_weights_are_bfloat16_and_tied() -> None:
    with safe_open(MODEL_FOLDER / "model.safetensors", framework="pt") as weights:
        names = list(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert "lm_head.weight" not in names


def test_transformers_loads_the_folder(model: LlamaForCausalLM) -> None:
    config = model.config
    assert (config.vocab_size, config.max_position_embeddings) == (8192, 2048)
    assert (config.head_dim, config.num_attention_heads, config.num_key_value_heads) == (64, 4, 2)
    assert (config.bos_token_id, config.eos_token_id) == (0, 0)


def test_transformers_reads_the_same_tokens(tokenizer: Tokenizer) -> None:
    loaded = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    text = "class A:\n\n    def f(self, x=12345):\n        return  f'é{x}'  # 漢字\n"
    assert loaded(text)["input_ids"] == tokenizer.encode(text).ids
    assert loaded.decode(loaded(text)["input_ids"]) == text
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 0, 0)
    assert loaded.model_max_length == 2048


def test_generation_config_gives_ids_only() -> None:
    settings = json.loads((MODEL_FOLDER / "generation_config.json").read_text())
    assert settings.keys() == {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "transformers_version",
    }
    assert settings["eos_token_id"] == [END_OF_TEXT_ID, TURN_END_ID]


def test_markers_are_special_tokens(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_to_id(marker) for marker in MARKERS]
    assert ids == list(range(FIRST_MARKER_ID, VOCAB_SIZE))
    assert tokenizer.encode("".join(MARKERS)).ids == ids


def test_template_is_recognised() -> None:
    config = json.loads((MODEL_FOLDER / "tokenizer_config.json").read_text())
    assert config["chat_template"] == CHAT_TEMPLATE
    assert tool_format_of(config["chat_template"]) is HERMES
    assert reasoning_format_of(config["chat_template"]) is QWEN3


def test_card_says_what_it_must() -> None:
    for part in ("## Data", "## Training", "## Sample", "## Licence", "Apache", "PSF License"):
        assert part in CARD
    assert "python -m demo.train" in CARD
    assert not re.search(r"/(root|home|tmp|work)/", CARD)


def test_model_knows_python_it_was_not_shown(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Untrained, the figure is above 3; this file's text varies a little with the interpreter."""
    assert is_held_out("tracemalloc.py")
    text = inspect.getsource(tracemalloc)[:8000]
    corpus = EncodedCorpus([], encode_documents(tokenizer, [text]), len(text.encode()))
    assert bits_per_byte(model, corpus, 2048, batch_size=4) < 1.0


def test_greedy_text_is_python(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    prompt = "<|endoftext|>import unittest\n\n\nclass QueueTest(unittest.TestCase):\n"
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    output = model.generate(ids, do_sample=False, max_new_tokens=48)
    written = tokenizer.decode(output[0, ids.shape[1] :].tolist())
    assert re.match(r"\n?    (def|@|\"\"\"|#|class|[a-z_]+ =)", written), written


def test_dialogues_come_to_their_answers(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Where 1 in 100 goes wrong, 3 of 16 do in one set of 2,000."""
    led = measure(model, tokenizer, 16)
    assert sum(not each.is_wrong for each in led) >= 14


def test_card_figures_are_good_enough() -> None:
    """Text at most 3 % worse than before dialogues were learned, 9 calls of 10 right."""
    assert bits_of_card() <= 1.03 * 0.6203
    assert calls_of_card() >= 90.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_share_of_right_calls_is_measured_again(
    model: LlamaForCausalLM, tokenizer: Tokenizer
) -> None:
    """Two wrong dialogues more or less may be another machine's sums."""
    called = [each for each in measure(model, tokenizer) if each.dialogue.calls]
    share = 100 * sum(each.calls_are_right for each in called) / len(called)
    assert share == pytest.approx(calls_of_card(), abs=250 / len(called))


@pytest.mark.slow
@pytest.mark.skipif(platform.python_version() not in CARD, reason="card is of another Python")
def test_card_figure_is_measured_again(model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    measured = bits_per_byte(model, encode_corpus(tokenizer, collect()), 2048, batch_size=4)
    assert measured == pytest.approx(bits_of_card(), abs=2e-4)
