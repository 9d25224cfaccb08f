"""Playing speculation back over a text gives the steps that speculation takes."""

import re

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from demo import EAGLE_FOLDER
from demo.acceptance import (
    NUM_DRAFTS,
    Acceptance,
    acceptance_probabilities,
    continue_prompts,
    table,
    walk,
)
from demo.head import TrainableEagleHead

CONFIG = LlamaConfig(
    vocab_size=5,  # so that a random head is often right
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    initializer_range=0.3,
)


def make_models() -> tuple[LlamaForCausalLM, TrainableEagleHead]:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval(), TrainableEagleHead(CONFIG).eval()


@torch.inference_mode()
def speculate(
    target: LlamaForCausalLM, head: TrainableEagleHead, prompt: list[int], length: int
) -> list[int]:
    """Accepted drafts of each greedy step, step by step."""

    def argmax(features: torch.Tensor) -> int:
        return int(target.lm_head(features).argmax())

    text, counts = list(prompt), []
    text.append(argmax(target.model(torch.tensor([text])).last_hidden_state[0, -1]))
    while len(text) - 1 + NUM_DRAFTS < length:
        features = target.model(torch.tensor([text])).last_hidden_state[:, :-1]
        drafts: list[int] = []
        for _ in range(NUM_DRAFTS):
            ids = torch.tensor([(text + drafts)[1 : features.shape[1] + 1]])
            (output,) = head.rollout(target.model.embed_tokens(ids), features, 1)
            features = torch.cat([features, output[:, -1:]], dim=1)
            drafts.append(argmax(output[0, -1]))
        states = target.model(torch.tensor([text + drafts])).last_hidden_state[0]
        expected = target.lm_head(states[len(text) - 1 :]).argmax(-1).tolist()
        run = [draft == token for draft, token in zip(drafts, expected, strict=False)]
        counts.append((*run, False).index(False))
        text += expected[: counts[-1] + 1]
    return counts


def test_the_walk_takes_the_steps_of_speculation() -> None:
    target, head = make_models()
    counts: list[int] = []
    for start in range(5):
        prompt = [start, 1, 4, 2]
        generator = torch.Generator().manual_seed(0)
        text = continue_prompts(target, torch.tensor([prompt]), 40, torch.zeros(1), generator)
        accepted = acceptance_probabilities(target, head, text, 0.0, "greedy")[0]
        steps = walk(accepted, len(prompt), generator)
        assert steps == speculate(target, head, prompt, text.shape[1])
        counts += steps
    assert len(set(counts)) > 2


def test_drawn_drafts_are_accepted_as_often_as_the_distributions_overlap() -> None:
    """E[min(1, q(x) / p(x))] over x ~ p is sum min(p, q), at every depth."""
    target, head = make_models()
    temperature, ids = 0.7, torch.tensor([[0, 3, 1, 4, 2, 2]])
    with torch.inference_mode():
        features = target.model(ids).last_hidden_state
        embeddings = target.model.embed_tokens(ids[:, 1:])
        p = (target.lm_head(features[0, -1]) / temperature).softmax(-1)
        outputs = head.rollout(embeddings, features[:, :-1], NUM_DRAFTS)
        q = [(target.lm_head(out[0, -1]) / temperature).softmax(-1) for out in outputs]
    kept = torch.zeros(NUM_DRAFTS)
    for token in range(5):
        text = torch.cat([ids, torch.tensor([[token]])], dim=1)
        probabilities = acceptance_probabilities(target, head, text, temperature, "gumbel")
        kept += p[token] * probabilities[0, :, -1]
    overlaps = torch.stack([torch.minimum(p, each).sum() for each in q])
    # The outputs at the last position but one are those the last token's drafts came from.
    torch.testing.assert_close(kept, overlaps)


def test_the_card_tells_figures_within_the_bar() -> None:
    card = (EAGLE_FOLDER / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([\d.]+) \| (\w+) \| ([\d.]+) \| ([\d.]+) \|", card, re.MULTILINE)
    accepted = {(float(t), drafts): float(mean) for t, drafts, mean, _ in lines}
    assert accepted[0.0, "greedy"] >= 2.2
    assert accepted[1.0, "gumbel"] >= 1.8
    assert all(abs(float(tokens) - float(mean) - 1) < 1e-9 for *_, mean, tokens in lines)


def test_a_table_has_a_line_a_setting() -> None:
    result = Acceptance(1.0, "gumbel", 1234, [0.75, 0.5, 0.25, 0.125])
    last = table([result]).splitlines()[-1]
    assert last == "| 1 | gumbel | 1.62 | 2.62 | 75.0 % | 50.0 % | 25.0 % | 12.5 % | 1,234 |"
