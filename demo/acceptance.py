"""How many drafts of a head the demo model accepts, in plain torch.

The target continues the held-out documents by itself; speculation is then played back over what it
wrote, which is exact. Given that the token at a position is x, a draft for it was accepted with
probability min(1, q(x) / p(x)) if drafts are drawn from q (x was drafted and accepted with
probability min(p(x), q(x)), and is kept with probability p(x)), and if x is q's highest token
if they are that. At temperature 0 a draft is accepted if it is the token. So steps are walked along
the text: accepted drafts until the first refusal, one more token, and on from there.

    python -m demo.acceptance --corpus stdlib.tar.xz     # the shipped EAGLE head's figures
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from transformers import DynamicCache, LlamaForCausalLM

from demo import EAGLE_FOLDER, MODEL_FOLDER
from demo.block_head import load_block_head
from demo.corpus import collect, read_archive
from demo.head import load_head
from demo.llama import load_model
from demo.tokens import EncodedCorpus, encode_corpus

PROMPT_TOKENS = 256
OUTPUT_TOKENS = 256
NUM_DRAFTS = 6
SETTINGS = ((0.0, "greedy"), (0.7, "greedy"), (0.7, "gumbel"), (1.0, "greedy"), (1.0, "gumbel"))
"""Temperature, and how drafts are drawn."""


@dataclass(frozen=True)
class Acceptance:
    """How many drafts the steps of a measurement accepted.

    Attributes:
        num_steps: steps walked.
        reached: share of the steps that accepted draft j and all before it, k entries.
    """

    temperature: float
    drafts: str
    num_steps: int
    reached: list[float]

    @property
    def mean_accepted(self) -> float:
        """Mean accepted drafts a step; the step gives one token more."""
        return sum(self.reached)


class MeasuredHead(Protocol):
    """A head that drafts tokens from what the target computed."""

    def outputs(
        self,
        target: LlamaForCausalLM,
        ids: torch.Tensor,
        states: Sequence[torch.Tensor],
        num_steps: int,
    ) -> list[torch.Tensor]:
        """What the target's output matrix turns into drafts of a text's tokens from the third on.

        Args:
            ids: int64 [1, T].
            states: [1, T, H] each, outputs of the target's embedding and layers, the last normed.

        Returns:
            [1, T - 2, H] for each number of drafts before in their step, 0 to num_steps - 1.
        """
        ...


@torch.inference_mode()
def continue_prompts(
    target: LlamaForCausalLM,
    prompts: torch.Tensor,
    num_tokens: int,
    temperatures: torch.Tensor,
    generator: torch.Generator,
) -> torch.Tensor:
    """Prompts int64 [B, P] and `num_tokens` more each, at temperatures [B]; 0 is greedy."""
    scale = torch.where(temperatures > 0.0, temperatures, 1.0)[:, None]
    cache, text, ids = DynamicCache(), prompts, prompts
    for _ in range(num_tokens):
        # By place: transformers 5.24 calls the argument `cache`, others `past_key_values`.
        logits = target(ids, None, None, cache, use_cache=True, logits_to_keep=1)
        probs = (logits.logits[:, -1].float() / scale).softmax(-1)
        drawn = torch.multinomial(probs, 1, generator=generator)
        ids = torch.where(temperatures[:, None] > 0.0, drawn, probs.argmax(-1, keepdim=True))
        text = torch.cat([text, ids], dim=1)
    return text


@torch.inference_mode()
def acceptance_probabilities(
    target: LlamaForCausalLM,
    head: MeasuredHead,
    text: torch.Tensor,
    temperature: float,
    drafts: str,
    num_drafts: int = NUM_DRAFTS,
) -> torch.Tensor:
    """Probability that the draft for each token of text [B, T] was accepted: [B, k, T].

    Entry [b, j, n] is for the token at n, drafted j after the first of its step.
    """
    accepted = torch.zeros(len(text), num_drafts, text.shape[1])
    for b, ids in enumerate(text):  # one by one: logits of all of them would be gigabytes
        made = target.model(input_ids=ids[None], use_cache=False, output_hidden_states=True)
        features, scale = made.last_hidden_state, temperature or 1.0
        log_p = (target.lm_head(features[:, 1:-1]).float() / scale).log_softmax(-1)
        tokens = ids[None, 2:, None]
        outputs = head.outputs(target, ids[None], made.hidden_states, num_drafts)
        for j, output in enumerate(outputs):
            log_q = (target.lm_head(output).float() / scale).log_softmax(-1)
            if drafts == "greedy":
                kept = (log_q.argmax(-1, keepdim=True) == tokens).float()
            else:
                kept = (log_q.gather(-1, tokens) - log_p.gather(-1, tokens)).exp().clamp(max=1.0)
            accepted[b, j, 2:] = kept[0, :, 0]
    return accepted


def walk(accepted: torch.Tensor, first: int, generator: torch.Generator) -> list[int]:
    """Accepted drafts of each step along one text.

    Args:
        accepted: [k, T] as from `acceptance_probabilities`.
        first: position of the token that no step drafted, drawn from the prompt.
    """
    num_drafts, length = accepted.shape
    kept = torch.rand(accepted.shape, generator=generator) < accepted
    counts, newest = [], first
    while newest + num_drafts < length:
        run = kept[range(num_drafts), range(newest + 1, newest + 1 + num_drafts)]
        counts.append(int(run.cumprod(0).sum()))
        newest += counts[-1] + 1
    return counts


def held_out_prompts(corpus: EncodedCorpus) -> torch.Tensor:
    """The beginnings of all held-out documents that are long enough, int64 [B, PROMPT_TOKENS]."""
    documents = [document for document in corpus.held_out if len(document) >= PROMPT_TOKENS]
    return torch.stack([document[:PROMPT_TOKENS] for document in documents])


def measure(
    target: LlamaForCausalLM,
    head: MeasuredHead,
    corpus: EncodedCorpus,
    num_drafts: int = NUM_DRAFTS,
) -> list[Acceptance]:
    """Acceptance in every one of `SETTINGS`, on what the target makes of held-out documents."""
    device = target.device
    prompts = held_out_prompts(corpus).to(device)
    results: list[Acceptance] = []
    texts: dict[float, torch.Tensor] = {}
    for temperature, drafts in SETTINGS:
        generator = torch.Generator(device).manual_seed(0)
        if temperature not in texts:
            temperatures = torch.full((len(prompts),), temperature, device=device)
            texts[temperature] = continue_prompts(
                target, prompts, OUTPUT_TOKENS, temperatures, generator
            )
        accepted = acceptance_probabilities(
            target, head, texts[temperature], temperature, drafts, num_drafts
        )
        chance = torch.Generator().manual_seed(0)
        counts = [count for text in accepted for count in walk(text, PROMPT_TOKENS, chance)]
        reached = [sum(c > j for c in counts) / len(counts) for j in range(num_drafts)]
        results.append(Acceptance(temperature, drafts, len(counts), reached))
    return results


def table(results: list[Acceptance]) -> str:
    """Markdown: one line a setting."""
    num_drafts = len(results[0].reached)
    columns = " | ".join(f"draft {j + 1}" for j in range(num_drafts))
    lines = [
        f"| temperature | drafts | accepted a step | tokens a step | {columns} | steps |",
        "| ---: | --- |" + " ---: |" * (num_drafts + 3),
    ]
    for r in results:
        reached = " | ".join(f"{100 * share:.1f} %" for share in r.reached)
        lines.append(
            f"| {r.temperature:g} | {r.drafts} | {r.mean_accepted:.2f} "
            f"| {1 + r.mean_accepted:.2f} | {reached} | {r.num_steps:,} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a head's acceptance.")
    parser.add_argument("--corpus", type=Path, help="archive; default: this interpreter's library")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="the target's folder")
    parser.add_argument("--head", type=Path, default=EAGLE_FOLDER, help="the head's folder")
    parser.add_argument(
        "--num-drafts", type=int, default=NUM_DRAFTS, help="drafts a step (default %(default)s)"
    )
    args = parser.parse_args()
    corpus = read_archive(args.corpus) if args.corpus else collect()
    target, tokenizer = load_model(args.model)
    encoded = encode_corpus(tokenizer, corpus)
    is_block = (args.head / "mask_embedding.pt").exists()
    head = load_block_head(args.head) if is_block else load_head(args.head)
    measured = measure(target, head.to(target.device).eval(), encoded, args.num_drafts)
    print(table(measured))


if __name__ == "__main__":
    main()
