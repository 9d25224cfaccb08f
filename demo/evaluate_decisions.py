"""How many held-out decisions the demo model answers right.

Each is asked in the words of `/v1/decisions`, with the thoughts closed; the model's greedy reply
must be the label of the right answer to the letter. So it must be likelier than all other labels,
and than all that is no label.

    python -m demo.evaluate_decisions     # the shipped model's figures
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.chat import prompt_of
from demo.decisions.decision import Decision
from demo.decisions.drawn import FAMILIES, decisions
from demo.evaluate_dialogues import reply_texts
from demo.llama import load_model

NUM_DECISIONS = 1000
SEED = 1
BATCH_SIZE = 64
KINDS = ("predicate", "choice", "score")


@dataclass(frozen=True)
class Answered:
    """A decision and what the model replied."""

    decision: Decision
    reply: str

    @property
    def is_right(self) -> bool:
        return self.reply == self.decision.label


def measure(
    model: LlamaForCausalLM, tokenizer: Tokenizer, number: int = NUM_DECISIONS
) -> list[Answered]:
    """Ask held-out decisions."""
    asked = list(itertools.islice(decisions(SEED, held_out=True), number))
    prompts = [prompt_of(each.dialogue.history, (), thinks=False) for each in asked]
    order = sorted(range(len(asked)), key=lambda i: len(prompts[i]))
    answered = []
    for first in range(0, len(order), BATCH_SIZE):
        picked = order[first : first + BATCH_SIZE]
        texts = reply_texts(model, tokenizer, [prompts[i] for i in picked])
        answered += [Answered(asked[i], text) for i, text in zip(picked, texts, strict=True)]
    return answered


def share_right(answered: Sequence[Answered]) -> float:
    """The share of right answers in percent."""
    return 100 * sum(each.is_right for each in answered) / len(answered)


def table(answered: Sequence[Answered]) -> str:
    """Shares by family and by kind of question, as Markdown."""
    lines = ["| held-out decisions | number | right answer |", "| --- | ---: | ---: |"]
    rows = {name: [each for each in answered if each.decision.family == name] for name in FAMILIES}
    rows |= {
        kind: [each for each in answered if each.decision.asked.question.kind == kind]
        for kind in KINDS
    }
    rows["all"] = list(answered)
    for name, some in rows.items():
        right = f"{share_right(some):.1f} %" if some else ""
        lines.append(f"| {name} | {len(some):,} | {right} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask the model held-out decisions.")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="model folder")
    parser.add_argument("--number", type=int, default=NUM_DECISIONS, help="of decisions")
    parser.add_argument("--show-wrong", action="store_true", help="print the wrong replies")
    args = parser.parse_args()
    model, tokenizer = load_model(args.model)
    answered = measure(model, tokenizer, args.number)
    if args.show_wrong:
        for each in answered:
            if not each.is_right:
                print(each.decision.dialogue.history[-1]["content"])
                print(f"    {each.reply!r} in place of {each.decision.label!r}\n")
    print(table(answered))


if __name__ == "__main__":
    main()
