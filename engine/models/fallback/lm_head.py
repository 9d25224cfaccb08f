"""Makes logits by an architecture's own LM head code: scales, soft caps and biases included.

The causal language model is called with its base model replaced by a stub that returns the hidden
states given to it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from engine.errors import ModelError
from engine.kernels.linear import LaidOut, logits_linear


class LMHead:
    """Maps hidden states [N, hidden] to float32 logits [N, vocab].

    Attributes:
        followers: what is to be computed anew after a write of the tensor at an address.
    """

    def __init__(self, module: Any) -> None:
        output = module.get_output_embeddings()
        if output is None:
            raise ModelError("it has no output embedding")
        self.vocab_size = len(output.weight)
        self.followers: dict[int, Callable[[], None]] = {}
        self._stub = _GivenHidden()
        # A shallow copy with a module table of its own; weights and everything else are shared.
        self._module = copy.copy(module)
        self._module._modules = dict(module._modules)
        self._module._modules[module.base_model_prefix] = self._stub
        for name, child in module._modules.items():
            if child is output and type(child) is nn.Linear:
                wide = _WideLinear(child)
                self._module._modules[name] = wide
                self.followers[child.weight.data_ptr()] = wide.refresh

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self._stub.hidden = hidden[None]
        logits: torch.Tensor = self._module(inputs_embeds=self._stub.hidden, use_cache=False).logits
        return logits[0].float()


class _Output(BaseModelOutputWithPast):  # type: ignore[misc]
    """A base model's output with None for all else that LM head code reads (router logits...)."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


class _GivenHidden(nn.Module):
    """Replaces a base model: returns the hidden states it was given."""

    hidden: torch.Tensor

    @property
    def decoder(self) -> _GivenHidden:
        """Itself: OPT's LM head code calls its base model's decoder."""
        return self

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(last_hidden_state=self.hidden)


class _WideLinear(nn.Module):
    """An LM head's nn.Linear with float32 output."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias: torch.Tensor | None = linear.bias
        self._laid_out = LaidOut(linear.weight)
        self._product = logits_linear(self._laid_out)

    def refresh(self) -> None:
        """Take over a weight that was written in place."""
        self._laid_out.assign(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self._product(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        return logits if self.bias is None else logits + self.bias
