"""Train a tiny model whose layers keep states, with a multi-token-prediction head, for tests.

    python -m demo.train_hybrid FOLDER --steps 400

Three gated delta rules and one attention of 64 lanes, over the characters of the demo's dialogues:
a minute or two on a CPU. It is not shipped. Tests take it for drafts that are accepted as often as
those of real heads.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextRotaryEmbedding,
)

from demo.dialogues import dialogues

VOCAB, WINDOW, BATCH = 128, 128, 16
"""Characters, and the windows of a step."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


class DraftingHead(nn.Module):
    """Predicts the token after the next from the next one and the hidden state before it."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        own = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
        own_config = Qwen3_5TextConfig(**config.to_dict() | own)
        own_config._attn_implementation = "eager"
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(hidden, eps)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(own_config, 0)])
        self.norm = Qwen3_5RMSNorm(hidden, eps)
        self._rotary = (Qwen3_5TextRotaryEmbedding(own_config),)  # a tuple: not of its weights

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Map embeddings of tokens 1 to T and hidden states of tokens 0 to T - 1 to its own."""
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(pair, dim=-1))
        positions = torch.arange(x.shape[1]).expand(3, 1, -1)
        seen = torch.full((x.shape[1],) * 2, -torch.inf).triu(1)[None, None]
        out = self.layers[0](x, self._rotary[0](x, positions), attention_mask=seen)
        normed: torch.Tensor = self.norm(out)
        return normed


def characters(seed: int) -> str:
    """The words of some dialogues, one after another."""
    lines = []
    for _, dialogue in zip(range(400), dialogues(seed), strict=False):
        turns = [*dialogue.history, *dialogue.turns]
        lines += [str(turn.get("content") or "") for turn in turns]
    return "\n".join(lines)


def encode(text: str) -> list[int]:
    """The ids of a text's characters; those beyond ASCII are one."""
    return [min(ord(character), VOCAB - 1) for character in text]


def windows(seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of ids [BATCH, WINDOW] from random places."""
    ids, rng = torch.tensor(encode(characters(seed))), random.Random(seed)
    while True:
        places = [rng.randrange(len(ids) - WINDOW) for _ in range(BATCH)]
        yield torch.stack([ids[place : place + WINDOW] for place in places])


def loss_of(model: Qwen3_5ForCausalLM, head: DraftingHead, ids: torch.Tensor) -> torch.Tensor:
    """The mean loss of next tokens, and of those after them by the head."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    embedded = model.model.embed_tokens(ids)
    drafted = head(embedded[:, 1:-1], hidden[:, :-2])
    first = cross_entropy(model.lm_head(hidden[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    second = cross_entropy(model.lm_head(drafted).flatten(0, 1), ids[:, 2:].flatten())
    return first + 0.5 * second


def train(steps: int, seed: int = 0) -> tuple[Qwen3_5ForCausalLM, DraftingHead, float]:
    """Train a model and its head; returns both, and the last steps' mean loss."""
    torch.manual_seed(seed)
    config = Qwen3_5TextConfig(**SIZES)
    model = Qwen3_5ForCausalLM._from_config(config, attn_implementation="eager").float()
    head = DraftingHead(config)
    weights = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    losses = []
    for _, ids in zip(range(steps), windows(seed), strict=False):
        optimizer.zero_grad()
        loss = loss_of(model, head, ids)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    last = losses[-20:]
    return model.eval(), head.eval(), sum(last) / len(last)


def save(model: Qwen3_5ForCausalLM, head: DraftingHead, folder: Path) -> None:
    """Write one checkpoint with both."""
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    own = {f"mtp.{name}": tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors | own, folder / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Train and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    model, head, loss = train(args.steps)
    save(model, head, args.folder)
    print(f"{args.folder}: mean loss of the last steps {loss:.3f}")


if __name__ == "__main__":
    main()
