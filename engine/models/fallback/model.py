"""Runs any other decoder-only architecture: transformers' modules over our paged attention.

Loading takes four steps. The model computes the logits of a short sequence with transformers' own
attention; a recording pass learns what each layer's attention is; the attention is routed to our
backend; and the same sequence, served in chunks from a paged cache, must give the same logits.
Whatever keeps state between tokens that we do not know of fails that last step.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.config import ModelConfig
from engine.contracts.attention import AttentionSpec
from engine.contracts.model import Hidden, ModelInputs
from engine.contracts.named_weights import NamedWeights
from engine.errors import ModelError, kind_and_line
from engine.memory.routes import ExpertRoutes
from engine.memory.states import StateSpec
from engine.models.fallback.adapters import install_adapters, serving_inputs
from engine.models.fallback.attention import (
    RECORDING,
    SERVING,
    PagedHook,
    Recorder,
    attach,
    register,
)
from engine.models.fallback.checks import position_limit, refuse_inexpressible
from engine.models.fallback.construct import checkpoint_module, dummy_module
from engine.models.fallback.lm_head import LMHead
from engine.models.fallback.named import module_weights
from engine.models.fallback.proof import proof_ids, prove_logits
from engine.models.weights.sources import Checkpoint


def load_fallback_model(
    config: ModelConfig, hf_config: Any, folder: Path, dtype: torch.dtype, device: torch.device
) -> FallbackModel:
    """Load the model of a transformers config on `device`, and prove that it is served right.

    Raises:
        ModelError: it cannot be served; the message names the feature.
    """
    refuse_inexpressible(hf_config)
    limit = position_limit(hf_config, config.max_model_len)
    stored = None
    if config.load_format == "dummy":
        module = dummy_module(hf_config, dtype, device, config.trust_remote_code)
    else:
        module = checkpoint_module(folder, hf_config, dtype, device, config.trust_remote_code)
        checkpoint = Checkpoint(folder)
        stored = checkpoint.types()
        checkpoint.close()
    name = type(module).__name__
    with torch.no_grad():
        try:
            ids = proof_ids(hf_config.get_text_config(decoder=True).vocab_size, device)
            register()
            expected = module(input_ids=ids[None], use_cache=False).logits[0].float()
            positions = min(limit, config.max_model_len or limit)
            model = FallbackModel(module, positions, limit, dtype, stored)
            prove_logits(model, ids, expected)
        except ModelError as error:
            raise ModelError(f"{name} is not supported: {error}") from error
        except Exception as error:  # whatever the architecture's own code raises
            raise ModelError(f"{name} cannot be served: {kind_and_line(error)}") from error
    return model


class FallbackModel:
    """The `CausalLM` around a transformers module.

    Its layers' outputs are not given, and their code may look at values on the host.

    Args:
        served_positions: positions that will be asked for; masks are judged over these.
        stored: names and types of the checkpoint's tensors; None where there is none.
    """

    num_feature_layers = 0
    routes: ExpertRoutes | None = None
    is_capturable = False

    def __init__(
        self,
        module: Any,
        served_positions: int,
        max_position: int,
        dtype: torch.dtype,
        stored: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        self.max_position = max_position
        self.dtype = dtype
        self.device: torch.device = next(module.parameters()).device
        self._base = module.base_model
        if self._base is module:
            raise ModelError(
                "its class has no base model apart from the LM head (base_model_prefix), so that "
                "hidden states cannot be read; give a model whose class has one as MODEL"
            )
        self._takes_positions = "position_ids" in inspect.signature(self._base.forward).parameters
        _freeze_rotations(module)
        install_adapters(module)
        recorder = self._record(module, served_positions)
        self.attention_specs: Sequence[AttentionSpec] = recorder.specs
        self._hook = PagedHook(recorder.layers)
        attach(module, self._hook, SERVING)
        self._serving_inputs = serving_inputs(self._base)
        self._lm_head = LMHead(module)
        self.vocab_size = self._lm_head.vocab_size
        self.hidden_size: int = module.config.get_text_config(decoder=True).hidden_size
        self._named = module_weights(module, stored, self._lm_head.followers)
        embedding = self._base.get_input_embeddings().weight
        self.num_weights = sum(w.numel() for w in self._base.parameters() if w is not embedding)

    def named_weights(self) -> NamedWeights:
        return self._named

    def state_specs(self, num_drafts: int) -> Sequence[StateSpec]:
        return ()

    def forward(self, inputs: ModelInputs, feature_layers: Sequence[int] = ()) -> Hidden:
        assert not feature_layers, "num_feature_layers is 0"
        self._hook.backend = inputs.attention
        return Hidden(self._run(inputs.input_ids, inputs.positions, **self._serving_inputs))

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self._base.get_input_embeddings()(input_ids)
        return embedded

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._lm_head(hidden)

    def _run(self, input_ids: torch.Tensor, positions: torch.Tensor, **inputs: Any) -> torch.Tensor:
        if self._takes_positions:
            # A step already in flight when a row reached its end asks for one position more.
            inputs["position_ids"] = positions[None].clamp(max=self.max_position - 1)
        out = self._base(input_ids=input_ids[None], use_cache=False, **inputs)
        hidden: torch.Tensor = out[0][0]
        return hidden

    def _record(self, module: nn.Module, served_positions: int) -> Recorder:
        recorder = Recorder(served_positions)
        attach(module, recorder, RECORDING)
        ids = torch.arange(4, device=self.device)
        self._run(ids, ids)
        if not recorder.specs:
            raise ModelError("no attention that goes through transformers' attention interface")
        if not self._takes_positions and any(s.alibi_slopes is None for s in recorder.specs):
            raise ModelError("it does not take positions")
        return recorder


def _freeze_rotations(module: nn.Module) -> None:
    """Fix angles that depend on a batch's longest sequence to those of short sequences.

    `position_limit` has made sure that no sequence is long; left alone, transformers would look
    at the positions on the host in each step.
    """
    part: Any
    for part in module.modules():
        kind = getattr(part, "rope_type", None)
        if isinstance(kind, dict):
            part.rope_type = {layer: _frozen(value) for layer, value in kind.items()}
        elif isinstance(kind, str):
            part.rope_type = _frozen(kind)


def _frozen(rope_type: str) -> str:
    return "default" if rope_type in ("dynamic", "longrope") else rope_type
