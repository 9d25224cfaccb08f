"""Whether a model multiplies by its embeddings, or by an LM head that its checkpoint holds."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from engine.config import ModelConfig
from engine.models.expected import FolderConfig
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.weights.folder import read_json
from engine.models.weights.sources import Checkpoint
from engine.models.weights.stored import Unread

logger = logging.getLogger(__name__)

WEIGHTS = ("weight", "qweight", "weight_packed")
FIELD = "tie_word_embeddings"
NEVER_TIED = {"kimi_linear", "nemotron_h"}
"""Model types whose heads transformers keeps apart, whatever the config says."""


def with_head(
    spec: DecoderSpec, config: ModelConfig, own: FolderConfig, dtype: torch.dtype
) -> DecoderSpec:
    """The spec, tied as transformers ties: a head that is stored and differs is the model's own.

    Args:
        dtype: the model's, in which embeddings and head are compared.
    """
    is_tied = _is_tied(spec, config, own, dtype)
    return replace(spec, lm_head=replace(spec.lm_head, is_tied=is_tied))


def _is_tied(spec: DecoderSpec, config: ModelConfig, own: FolderConfig, dtype: torch.dtype) -> bool:
    is_asked = _is_asked(spec, config, own)
    may_tie = own.hf_config.model_type not in NEVER_TIED
    if config.load_format == "dummy":
        return is_asked and may_tie
    if not (is_asked or spec.lm_head.is_tied or getattr(own.hf_config, FIELD, False)):
        return False
    head, embedding = spec.lm_head.name, spec.embedding.name
    checkpoint = Checkpoint(own.path.parent, Unread(renamed=spec.renamed))
    is_stored = any(checkpoint.shape(f"{head}.{kind}") for kind in WEIGHTS)
    names = f"{head}.weight", f"{embedding}.weight"
    is_same = is_asked and may_tie and checkpoint.has_equal(*names, dtype)
    checkpoint.close()
    if is_asked and is_stored and not is_same:
        text = "%s: the LM head is the checkpoint's own, though config.json ties it to embeddings"
        logger.info(text, config.model)
    return is_same or not is_stored


def _is_asked(spec: DecoderSpec, config: ModelConfig, own: FolderConfig) -> bool:
    """Whether the config ties: the whole model's where it says so, else its text's."""
    if FIELD in read_json(own.path) or FIELD in (config.hf_overrides or {}):
        return bool(getattr(own.hf_config, FIELD))
    return spec.lm_head.is_tied
