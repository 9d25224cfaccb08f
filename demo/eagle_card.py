"""The EAGLE head's card: measures a trained head and describes it with the run's figures."""

from pathlib import Path

from demo.acceptance import (
    NUM_DRAFTS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    held_out_prompts,
    measure,
    table,
)
from demo.head import load_head
from demo.head_run import HeadRun
from demo.llama import load_model
from demo.tokens import EncodedCorpus

CARD = """\
---
license: apache-2.0
library_name: transformers
tags: [code, python, speculative-decoding, eagle]
---

# tailrace demo EAGLE head

Drafts for the demo model (`demo/model`): the published EAGLE-1 format, {parameters:.2f}M parameters
in bfloat16. The embedding and the output matrix are the target's and not in the file.

| | |
| --- | --- |
| `fc.weight` | 512 → 256, of the token's embedding and the target's hidden state before it |
| `layers.0` | a Llama layer without the norm in front of attention: 4 query and 2 KV heads of 64, \
feed-forward {inner} |

## Acceptance

{num_drafts} drafts a step, on what the target writes after the first {prompt_tokens} tokens of \
{num_prompts} held-out files,
{output_tokens} tokens each. *Accepted a step* counts drafts alone; *tokens a step* counts the
token that the target adds, as the papers' "acceptance length" does. *Draft j* is the share of
steps that accept it and all before it. "greedy" drafts are the head's highest token, "gumbel"
drafts are drawn from its distribution; rejection sampling, no other filter.

{table}

`python -m demo.acceptance --corpus stdlib.tar.xz` measures it again, in float32; how, it says.

## Training

```
python -m demo.train_eagle --corpus stdlib.tar.xz --start FOLDER --steps {steps} \
--matrix-rate {matrix_rate:g}
```

{steps:,} steps of {batch_tokens:,} tokens in {seconds:.0f} s on one {hardware}, torch \
{torch_version}, bfloat16 autocast, from
{start}. Half of the tokens are the
target's own: {written:,} windows it wrote at temperatures 0, 0.7 and 1. Of the others, two thirds
are the library's ({num_training_files:,} files, as the model's card tells), a third that of \
{dialogues:,} dialogues. The loss is summed over \
{draft_steps} draft steps, each fed the
outputs of the one before (weights {step_weight:g}^j): the cross entropy of the target's \
distribution, {overlap:g} times the
refused mass 1 - Σ min(p, q), {feature:g} times the smooth L1 distance of features. Muon on matrices
(rate {matrix_rate:g}), AdamW on the norm (rate {vector_rate:g}), weight decay {weight_decay:g}.

## Licence

As the demo model's: Apache License 2.0 for the weights, the
[PSF License Agreement](https://docs.python.org/3/license.html) for passages of Python's source
text (Copyright © 2001 Python Software Foundation; All Rights Reserved) that they may repeat.
"""


def write_card(folder: Path, model: Path, corpus: EncodedCorpus, run: HeadRun) -> None:
    """Measure the saved head in float32 and write README.md beside it."""
    target, _ = load_model(model)
    head = load_head(folder).to(target.device).eval()
    settings = run.settings
    text = CARD.format(
        parameters=sum(p.numel() for p in head.parameters()) / 1e6,
        inner=head.config.intermediate_size,
        num_drafts=NUM_DRAFTS,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        num_prompts=len(held_out_prompts(corpus)),
        table=table(measure(target, head, corpus)),
        num_training_files=len(corpus.training),
        written=settings.written_windows,
        overlap=settings.overlap_weight,
        feature=settings.feature_weight,
        seconds=run.seconds,
        hardware=run.hardware,
        torch_version=run.torch_version,
        start=run.start,
        **{
            name: getattr(settings, name)
            for name in (
                "steps",
                "batch_tokens",
                "dialogues",
                "draft_steps",
                "step_weight",
                "matrix_rate",
                "vector_rate",
                "weight_decay",
            )
        },
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
