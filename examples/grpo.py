"""Train the demo model to call its tools right, by rollouts from a server that it updates.

    tailrace serve --enable-weight-updates &
    python examples/grpo.py

Each step asks the server for several replies to questions of arithmetic, rewards those that call
the right tool with the right numbers, and moves the weights by GRPO (arXiv 2402.03300): a reply's
advantage is its reward's distance from its group's mean in standard deviations. The new weights go
to the server, which goes on with them. The server's logprobs are those of the policy that drew the
tokens, so they are what the importance ratios are made of; before the weights move these are 1,
but for rounding, and the script says how far they are from it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER, topics

TOOLS = {"add": topics.ADD_QUESTIONS, "multiply": topics.MULTIPLY_QUESTIONS}
CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
EVALUATED = 4
"""Replies to each question of an evaluation."""
MAX_RATIO = 2.0
"""Importance ratios are cut here, so that no token outweighs all others."""


@dataclass
class Question:
    """A question, and the call that answers it."""

    messages: list[dict[str, str]]
    tool: str
    numbers: tuple[int, int]


@dataclass
class Rollout:
    """A reply of the server: ids of prompt and reply, and the reply's logprobs."""

    prompt: list[int]
    reply: list[int]
    logprobs: list[float]
    reward: float
    version: str
    advantage: float = 0.0


def ask(draw: random.Random) -> Question:
    """A question with numbers of ten digits, more than the model was trained on."""
    tool = draw.choice(list(TOOLS))
    a, b = (draw.randrange(10**9, 10**10) for _ in range(2))
    text = draw.choice(TOOLS[tool]).format(a=a, b=b)
    return Question([{"role": "user", "content": text}], tool, (a, b))


def tools() -> list[dict[str, Any]]:
    """The two tools, as a chat has them."""
    properties = {name: {"type": "number"} for name in ("a", "b")}
    schema = {"type": "object", "properties": properties, "required": ["a", "b"]}
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}} for name in TOOLS
    ]


def reward(question: Question, text: str) -> float:
    """1 for a single call of the right tool with the right numbers, else 0."""
    calls = CALL.findall(text)
    if len(calls) != 1:
        return 0.0
    try:
        call = json.loads(calls[0])
        numbers = tuple(call["arguments"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0.0
    return float(call.get("name") == question.tool and numbers == question.numbers)


class Server:
    """The server that draws replies and is updated."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=300)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        reply = self._http.post(path, json=body)
        if reply.status_code != 200:
            raise SystemExit(f"{path}: {reply.status_code} {reply.text}")
        return reply.json()

    def rollouts(self, question: Question, count: int, temperature: float) -> list[Rollout]:
        """Replies to a question, each with the logprobs of its tokens."""
        chat = {"messages": question.messages, "tools": tools(), "max_tokens": 96}
        body = self._post("/v1/chat/completions/render", chat)
        body["sampling_params"] |= {"n": count, "temperature": temperature, "logprobs": 0}
        body["sampling_params"] |= {"skip_special_tokens": False}
        reply = self._post("/inference/v1/generate", {**body, "output_mode": "text"})
        return [
            Rollout(
                prompt=body["token_ids"],
                reply=choice["token_ids"],
                logprobs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
                reward=reward(question, choice["text"]),
                version=choice["weight_versions"][-1]["version"],
            )
            for choice in reply["choices"]
        ]

    def groups(
        self, questions: list[Question], count: int, temperature: float
    ) -> list[list[Rollout]]:
        """Replies to each of many questions, all asked at once."""
        with ThreadPoolExecutor(len(questions)) as threads:
            return list(threads.map(lambda q: self.rollouts(q, count, temperature), questions))

    def update(self, model: LlamaForCausalLM, version: int) -> None:
        """Let the server go on with the model's weights."""
        with tempfile.TemporaryDirectory() as folder:
            tensors = {
                name: tensor.contiguous()
                for name, tensor in model.state_dict().items()
                if name != "lm_head.weight"  # it is the embeddings
            }
            save_file(tensors, Path(folder) / "model.safetensors")
            self._post(
                "/update_weights", {"weight_dir": folder, "weight_version": f"step {version}"}
            )


def set_advantages(group: list[Rollout]) -> None:
    """Measure each reward by its group."""
    rewards = torch.tensor([rollout.reward for rollout in group])
    for rollout, value in zip(
        group, (rewards - rewards.mean()) / (rewards.std() + 1e-4), strict=True
    ):
        rollout.advantage = float(value)


def token_logprobs(model: LlamaForCausalLM, batch: list[Rollout]) -> tuple[torch.Tensor, ...]:
    """The model's logprobs of all replies' tokens, the server's, and each token's advantage."""
    width = max(len(each.prompt) + len(each.reply) for each in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.int64)
    is_reply = torch.zeros(len(batch), width, dtype=torch.bool)
    for row, each in enumerate(batch):
        whole = each.prompt + each.reply
        ids[row, : len(whole)] = torch.tensor(whole)
        is_reply[row, len(each.prompt) : len(whole)] = True
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1][is_reply[:, 1:]]
    logits = model.lm_head(hidden)
    chosen = ids[:, 1:][is_reply[:, 1:]]
    own = logits.log_softmax(-1).gather(1, chosen[:, None])[:, 0]
    served = torch.tensor([value for each in batch for value in each.logprobs])
    advantages = torch.tensor([each.advantage for each in batch for _ in each.reply])
    return own, served, advantages


def train_step(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, rollouts: list[Rollout], size: int
) -> float:
    """Move the weights once; returns mean |ratio - 1| before it."""
    num_tokens = sum(len(each.reply) for each in rollouts)
    off = 0.0
    optimizer.zero_grad()
    for start in range(0, len(rollouts), size):
        own, served, advantages = token_logprobs(model, rollouts[start : start + size])
        ratios = (own - served).exp()
        off += float((ratios.detach() - 1).abs().sum())
        loss = -(ratios.clamp(max=MAX_RATIO) * advantages).sum() / num_tokens
        torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return off / num_tokens


def evaluate(server: Server, count: int) -> float:
    """The share of drawn replies to held-out questions that call the right tool."""
    draw = random.Random(0)
    groups = server.groups([ask(draw) for _ in range(count)], EVALUATED, 1.0)
    return sum(each.reward for group in groups for each in group) / (count * EVALUATED)


def main() -> None:
    """Train, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--questions", type=int, default=16, help="of a step")
    parser.add_argument("--group", type=int, default=8, help="replies to each question")
    parser.add_argument("--rate", type=float, default=5e-5, help="of learning")
    parser.add_argument("--held-out", type=int, default=50, help="questions of an evaluation")
    args = parser.parse_args()
    server, draw = Server(args.base_url, args.api_key), random.Random(1)
    model = LlamaForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, weight_decay=0.0)
    server.update(model, 0)
    print(
        f"before: {evaluate(server, args.held_out):.2f} of replies to held-out questions right",
        flush=True,
    )
    for step in range(1, args.steps + 1):
        began = time.perf_counter()
        groups = server.groups([ask(draw) for _ in range(args.questions)], args.group, 1.0)
        for group in groups:
            set_advantages(group)
        rollouts = [each for group in groups for each in group]
        assert all(each.version == f"step {step - 1}" for each in rollouts), "of other weights"
        off = train_step(model, optimizer, rollouts, size=32)
        server.update(model, step)
        mean = sum(each.reward for each in rollouts) / len(rollouts)
        seconds = time.perf_counter() - began
        print(
            f"step {step}: reward {mean:.2f}, mean |ratio - 1| {off:.1e}, {seconds:.1f} s",
            flush=True,
        )
    print(f"after: {evaluate(server, args.held_out):.2f} of replies to held-out questions right")


if __name__ == "__main__":
    main()
