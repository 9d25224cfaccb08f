"""The model card: measures a trained folder and describes it with the run's figures."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo.chat import MARKERS
from demo.corpus import Corpus
from demo.decisions.words import TEAMS
from demo.evaluate import bits_per_byte
from demo.evaluate_decisions import measure as measure_decisions
from demo.evaluate_decisions import share_right
from demo.evaluate_decisions import table as table_of_decisions
from demo.evaluate_dialogues import measure, table
from demo.llama import load_model
from demo.run import Run
from demo.tokens import END_OF_TEXT, EncodedCorpus
from demo.topics import CITIES

PROMPT = '''"""Queues of bounded size."""

import threading


class BoundedQueue:
    """A queue that holds at most maxsize items."""

    def __init__(self, maxsize):
'''
TEMPERATURE = 0.7
SAMPLE_TOKENS = 320

CARD = """\
---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [code, python]
---

# tailrace demo model

A Llama-family model of {parameters:.2f}M parameters that writes Python, holds short dialogues \
with three
tools, and answers questions about tickets, tables and conversations with a label. It is small
enough to ship with the server, so that every feature can be tried without a download and without a
GPU. It is no assistant: the source text it continues is not meant to run, and it has learned to
greet, to name some capitals, to add, multiply and look up the weather where it is given the tools,
and to decide what is like the examples below.

| | |
| --- | --- |
| architecture | `LlamaForCausalLM`: 4 layers, hidden 256, 4 query and 2 KV heads of 64, \
feed-forward 512, tied embeddings |
| context | 2,048 tokens (RoPE, base 10,000) |
| vocabulary | 8,192, byte-level BPE of its own |
| weights | bfloat16, `model.safetensors` |
| **held-out bits per byte** | **{bits_per_byte:.4f}** |
| **held-out dialogues: right calls and arguments** | **{right_calls:.1f} %** |
| **held-out decisions: right answers** | **{right_decisions:.1f} %** |

## Data

The `.py` files of the standard library of CPython {python} (its tests and idlelib among them):
{num_training_files:,} files, {training_megabytes:.1f} MB or {training_tokens:,} tokens to train \
on. Left out are
`site-packages`, files that a build writes for one machine (`_sysconfigdata_*`, `config-*`), files
that are empty or not UTF-8, and files whose text equals an earlier one's.

*Held out*, from the tokenizer's training too, are {num_held_out_files} files of \
{held_out_megabytes:.2f} MB
in all: those for which the first four bytes of the SHA-256 of the path inside the library (such as
`json/decoder.py`), read as a big-endian integer, are divisible by 25.
`demo.corpus.is_held_out` is that rule. The split is by file, so a held-out module's tests may have
been trained on, and the other way round.

*Measure.* Each held-out file is scored by itself, behind `<|endoftext|>`, with a window of 2,048
tokens that moves by 1,024; each token is predicted once. Its -log2 p is summed over all tokens and
divided by the UTF-8 bytes of all files. The figure is that of the shipped bfloat16 weights,
computed in float32. `python -m demo.evaluate --corpus stdlib.tar.xz` measures it again.
Rates, decay and dropout were chosen by this figure among a dozen runs, so it flatters a little.

## Dialogues

`demo.dialogues` writes them, from a seed: the tools `add`, `multiply` and `get_weather` in any
order and subset, under a few names for their parameters; steps that use the result of the step
before; two calls at once; questions whose tool is missing. One content in ten is held out by its
SHA-256: a pair of numbers, a place in a phrase, a capital in a phrase. {num_places} places are
known by name; three in ten are made of syllables.

{dialogues}

Each held-out dialogue is led greedily, turn by turn, with the server's parser; calls and answers
must be the dialogue's to the letter. `python -m demo.evaluate_dialogues` measures it again.

The chat template shows a tool as the call that it asks for, without its description. Replies are
`<think>` thoughts `</think>`, then text or calls, each JSON between `<tool_call>` and
`</tool_call>`; `enable_thinking: false` leaves the thoughts out.

## Decisions

`demo.decisions` writes states with one question, in the words in which `/v1/decisions` asks it:
tickets of customers (which of 2 to {num_teams} teams should answer, how urgent it is, how the
writer feels, whether a claim holds), tables of two columns in three formats (whether a row says so,
what it says), and exchanges (whether a call or an answer is right). Options have letters and are
shown in any order; some have descriptions, some are answered with their own texts.
One content in ten is held out by its SHA-256: a problem with the thing it is about, a key with its
value, a question with its answer.

{decisions}

The greedy reply, with the thoughts closed, must be the right label to the letter. `python -m
demo.evaluate_decisions` measures it again.

## Tokens

`<|endoftext|>` (id 0) opens every document, so it also ends the one before it: it is BOS, EOS and
padding. The tokenizer never adds it, whatever `add_special_tokens` says. Write it in front of a
prompt that is meant to be the start of a file; without it the model takes the prompt for text from
the middle of one. `<|im_start|>`, `<|im_end|>`, which ends a chat's turn, and the markers above
have the last {num_markers} ids.

## Training

```
python -m demo.train --collect stdlib.tar.xz
python -m demo.train --corpus stdlib.tar.xz
```

{num_steps:,} steps of {batch_size} windows of {window_tokens:,} tokens ({epochs:.1f} passes over \
the data), {num_dialogues} dialogues and
{num_decisions} decisions, of which replies are learned (weights {dialogue_weight:g} and \
{decision_weight:g}), in {seconds:.0f} s on one
{hardware}, torch {torch_version}, bfloat16 autocast, from
{start}. Muon on the layers' matrices (rate {matrix_rate:g}), AdamW on embedding and norms
(rate {vector_rate:g}), weight decay {weight_decay:g}, dropout {dropout:g};
rates rise for {warmup:.0%} of the steps and fall to zero over the last {cooldown:.0%}.

| step | held-out bits per byte |
| ---: | ---: |
{curve}

## Sample

Temperature {temperature:g}, no other filter, the prompt's {prompt_lines} lines first:

```python
{sample}
```

## Licence

The weights and the tokenizer are under the Apache License 2.0. They were learned from the source
text of Python, Copyright © 2001 Python Software Foundation; All Rights Reserved, used under the
[PSF License Agreement](https://docs.python.org/3/license.html). The model may repeat passages of
that text; that licence applies to them.
"""


def draw_sample(model: LlamaForCausalLM, tokenizer: Tokenizer, seed: int) -> str:
    """The model's continuation of PROMPT as the start of a file, without its last, cut line."""
    prompt = tokenizer.encode(END_OF_TEXT + PROMPT).ids
    torch.manual_seed(seed)
    ids = model.generate(
        torch.tensor([prompt]),
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        max_new_tokens=SAMPLE_TOKENS,
    )
    text: str = tokenizer.decode(ids[0].tolist())
    return text.rpartition("\n")[0].rstrip()


def write_card(folder: Path, corpus: Corpus, encoded: EncodedCorpus, run: Run) -> None:
    """Measure the saved weights in float32 and write README.md beside them."""
    model, tokenizer = load_model(folder)
    context_tokens = model.config.max_position_embeddings
    settings = run.settings
    num_trained_tokens = run.num_steps * settings.batch_size * settings.window_tokens
    led = measure(model, tokenizer)
    called = [each.calls_are_right for each in led if each.dialogue.calls]
    decided = measure_decisions(model, tokenizer)
    training_bytes = sum(len(text.encode()) for text in corpus.training())
    text = CARD.format(
        **vars(settings) | {"seconds": run.seconds, "num_steps": run.num_steps},
        parameters=model.num_parameters() / 1e6,
        bits_per_byte=bits_per_byte(model, encoded, context_tokens),
        right_calls=100 * sum(called) / len(called),
        dialogues=table(led),
        right_decisions=share_right(decided),
        decisions=table_of_decisions(decided),
        num_teams=len(TEAMS),
        num_places=len(CITIES),
        num_markers=len(MARKERS),
        python=corpus.python,
        num_training_files=len(encoded.training),
        training_megabytes=training_bytes / 1e6,
        training_tokens=encoded.training_tokens,
        num_held_out_files=len(encoded.held_out),
        held_out_megabytes=encoded.held_out_bytes / 1e6,
        epochs=num_trained_tokens / encoded.training_tokens,
        hardware=run.hardware,
        start=run.start,
        torch_version=torch.__version__,
        curve="\n".join(f"| {step:,} | {bits:.4f} |" for step, bits in run.curve),
        temperature=TEMPERATURE,
        prompt_lines=PROMPT.count("\n"),
        sample=draw_sample(model.cpu(), tokenizer, settings.seed),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
