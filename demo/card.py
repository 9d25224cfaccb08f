"""The model card: measures a trained folder and describes it with the run's figures."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo.corpus import Corpus
from demo.evaluate import bits_per_byte
from demo.run import Run
from demo.tokens import END_OF_TEXT, EncodedCorpus

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

A Llama-family model of {parameters:.2f}M parameters that writes Python. It is small enough to \
ship with
the server, so that every feature can be tried without a download and without a GPU. It is no
assistant: it continues source text, and what it writes is not meant to run.

| | |
| --- | --- |
| architecture | `LlamaForCausalLM`: 4 layers, hidden 256, 4 query and 2 KV heads of 64, \
feed-forward 512, tied embeddings |
| context | 2,048 tokens (RoPE, base 10,000) |
| vocabulary | 8,192, byte-level BPE of its own |
| weights | bfloat16, `model.safetensors` |
| **held-out bits per byte** | **{bits_per_byte:.4f}** |

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

## Tokens

`<|endoftext|>` (id 0) opens every document, so it also ends the one before it: it is BOS, EOS and
padding. The tokenizer never adds it, whatever `add_special_tokens` says. Write it in front of a
prompt that is meant to be the start of a file; without it the model takes the prompt for text from
the middle of one.

## Training

```
python -m demo.train --collect stdlib.tar.xz
python -m demo.train --corpus stdlib.tar.xz
```

{steps:,} steps of {batch_size} windows of 2,048 tokens ({epochs:.0f} passes over the data) in
{seconds:.0f} s on one {hardware}, torch {torch_version}, bfloat16 autocast. Muon on the layers' \
matrices
(rate {matrix_rate:g}), AdamW on embedding and norms (rate {vector_rate:g}), weight decay \
{weight_decay:g}, dropout {dropout:g};
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
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    context_tokens = model.config.max_position_embeddings
    num_trained_tokens = run.settings.steps * run.settings.batch_size * context_tokens
    training_bytes = sum(len(text.encode()) for text in corpus.training())
    text = CARD.format(
        **vars(run.settings),
        parameters=model.num_parameters() / 1e6,
        bits_per_byte=bits_per_byte(model.to(device), encoded, context_tokens),
        python=corpus.python,
        num_training_files=len(encoded.training),
        training_megabytes=training_bytes / 1e6,
        training_tokens=encoded.training_tokens,
        num_held_out_files=len(encoded.held_out),
        held_out_megabytes=encoded.held_out_bytes / 1e6,
        epochs=num_trained_tokens / encoded.training_tokens,
        seconds=run.seconds,
        hardware=run.hardware,
        torch_version=torch.__version__,
        curve="\n".join(f"| {step:,} | {bits:.4f} |" for step, bits in run.curve),
        temperature=TEMPERATURE,
        prompt_lines=PROMPT.count("\n"),
        sample=draw_sample(model.cpu(), tokenizer, run.settings.seed),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
