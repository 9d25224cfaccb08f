"""A block head for the demo model (DFlash, Chen et al. 2026): drafts k tokens in one forward.

Letters in shapes: B windows, T positions, F width of features, H hidden size, A anchors a window, b
tokens of a block.

Outputs of some of the target's layers are fused to a context, of which every layer makes keys and
values. A block is its anchor, a token of the text, and masks; each place sees the context before
the anchor and the whole block, and its output stands for the target's last hidden state one token
before it, so that the target's own head turns it into q, the distribution of the token at its
place. Blocks from many anchors are trained at once, apart from one another.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaForCausalLM, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from demo.llama import model_config
from demo.tokens import END_OF_TEXT_ID

NUM_LAYERS, BLOCK_TOKENS, TARGET_LAYERS = 2, 8, (0, 1, 2)
"""The last layer is read by no head: transformers has its output after the final norm alone."""
CHUNK_ANCHORS = 128
"""Anchors whose blocks are computed together where a whole text is looked at."""
Rotation = tuple[torch.Tensor, torch.Tensor]


def block_config() -> Qwen3Config:
    """The head's shape: its width is the target's, and its layers are as wide as the target's."""
    target = model_config()
    return Qwen3Config(
        architectures=["DFlashDraftModel"],
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        tie_word_embeddings=False,
        block_size=BLOCK_TOKENS,
        num_target_layers=target.num_hidden_layers,
        dflash_config={
            "mask_token_id": END_OF_TEXT_ID,  # with an embedding of its own as a mask
            "target_layer_ids": list(TARGET_LAYERS),
        },
    )


class BlockAttention(nn.Module):
    """Attention of blocks to a context and to themselves."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        q_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, q_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, config.hidden_size, bias=False)
        self.q_norm = Qwen3RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, rotation: Rotation, visible: torch.Tensor
    ) -> torch.Tensor:
        """Attend from blocks x [B, A * b, H] to context [B, T, H] and blocks.

        Args:
            rotation: cos and sin of the context's positions, then of the blocks'.
            visible: bool [B, 1, A * b, T + A * b].
        """
        both = torch.cat([context, x], dim=1)
        q = self.q_norm(self._heads(self.q_proj(x)))
        k = self.k_norm(self._heads(self.k_proj(both)))
        v = self._heads(self.v_proj(both))
        cos, sin = rotation
        k, _ = apply_rotary_pos_emb(k, k, cos, sin)
        own = slice(context.shape[1], None)
        q, _ = apply_rotary_pos_emb(q, q, cos[:, own], sin[:, own])
        out = scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=True)
        projected: torch.Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class ContextLayer(nn.Module):
    """A layer as Qwen3 has it, over blocks."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, context: torch.Tensor, rotation: Rotation, visible: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, rotation, visible)
        added: torch.Tensor = self.mlp(self.post_attention_layernorm(x))
        return x + added


class TrainableBlockHead(nn.Module):
    """A trainable DFlash head; the engine serves what `save_block_head` writes.

    Parameters have the names of the published heads, but for the mask's embedding.
    """

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__()
        self.config = config
        self.block_size: int = config.block_size
        self.target_layers: list[int] = config.dflash_config["target_layer_ids"]
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(self.target_layers) * hidden, hidden, bias=False)
        self.hidden_norm = Qwen3RMSNorm(hidden, eps)
        self.layers = nn.ModuleList([ContextLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(hidden, eps)
        self.mask_embedding = nn.Parameter(torch.randn(hidden) * config.initializer_range)
        self.rotary = Qwen3RotaryEmbedding(config)

    def forward(
        self, states: Sequence[torch.Tensor], embeddings: torch.Tensor, anchors: torch.Tensor
    ) -> torch.Tensor:
        """The outputs [B, A, b, H] of blocks.

        Args:
            states: [B, T, H] each, outputs of the target's embedding and layers in order.
            embeddings: [B, A, H], of the anchors' tokens. anchors: int64 [B, A], their positions.
        """
        context = torch.cat([states[i + 1] for i in self.target_layers], dim=-1)
        context = self.hidden_norm(self.fc(context))
        (num_windows, length), (_, num_anchors) = context.shape[:2], anchors.shape
        masks = self.mask_embedding.expand(num_windows, num_anchors, self.block_size - 1, -1)
        x = torch.cat([embeddings[:, :, None], masks.to(embeddings.dtype)], dim=2).flatten(1, 2)
        places = torch.arange(self.block_size, device=anchors.device)
        positions = (anchors[:, :, None] + places).flatten(1)
        before = torch.arange(length, device=anchors.device).expand(num_windows, -1)
        rotation = self.rotary(context, torch.cat([before, positions], dim=1))
        visible = self._visible(anchors, length)
        for layer in self.layers:
            x = layer(x, context, rotation, visible)
        normed: torch.Tensor = self.norm(x)
        return normed.view(num_windows, num_anchors, self.block_size, -1)

    def _visible(self, anchors: torch.Tensor, length: int) -> torch.Tensor:
        """What each place sees: the context before its anchor, and its own block."""
        place_anchors = anchors.repeat_interleave(self.block_size, dim=1)
        context = torch.arange(length, device=anchors.device) < place_anchors[:, :, None]
        block = torch.arange(place_anchors.shape[1], device=anchors.device) // self.block_size
        own = (block[:, None] == block).expand(len(anchors), -1, -1)
        return torch.cat([context, own], dim=2)[:, None]

    def outputs(
        self,
        target: LlamaForCausalLM,
        ids: torch.Tensor,
        states: Sequence[torch.Tensor],
        num_steps: int,
    ) -> list[torch.Tensor]:
        """See `demo.acceptance.MeasuredHead`; a draft's place in the block is its step."""
        anchors = torch.arange(1, ids.shape[1] - 1, device=ids.device)
        parts = [
            self(states, target.model.embed_tokens(ids[:, some]), some[None])[0]
            for some in torch.split(anchors, CHUNK_ANCHORS)
        ]
        blocks = torch.cat(parts)  # [T - 2, b, H], from the anchor at 1 on
        return [
            torch.cat([torch.zeros_like(blocks[:j, 0]), blocks[: len(blocks) - j, j + 1]])[None]
            for j in range(num_steps)
        ]


def save_block_head(head: TrainableBlockHead, folder: Path) -> None:
    """Write config.json, the mask's embedding and bfloat16 weights; the rest is the target's."""
    config = head.config.to_diff_dict() | {"dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    tensors = {n: p.detach().to("cpu", torch.bfloat16) for n, p in head.named_parameters()}
    torch.save(tensors.pop("mask_embedding"), folder / "mask_embedding.pt")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def load_block_head(folder: Path) -> TrainableBlockHead:
    """A float32 head on the CPU."""
    head = TrainableBlockHead(Qwen3Config.from_pretrained(folder))
    tensors = load_file(folder / "model.safetensors")
    tensors["mask_embedding"] = torch.load(folder / "mask_embedding.pt", weights_only=True)
    head.load_state_dict(tensors, strict=True)
    return head
