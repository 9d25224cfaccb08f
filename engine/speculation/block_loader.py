"""Loads a head that drafts in blocks, or says what of it does not fit the target."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

from engine.contracts.model import CausalLM
from engine.errors import ModelError, first_line
from engine.kernels.linear import Linear, logits_linear
from engine.models.families.table import decoder_spec
from engine.models.formats.projections import Projection
from engine.models.formats.reader import WeightReader
from engine.models.layers.attention import Attention
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.weights.shares import RankShare, undivided
from engine.models.weights.sources import Checkpoint, DummyWeights
from engine.models.weights.stored import Unread, WeightSource
from engine.speculation.block import LoadedBlockHead
from engine.speculation.block_config import BlockConfig, block_config
from engine.speculation.block_drafts import (
    BlockDrafts,
    IndependentDrafts,
    MarkovDrafts,
    OutputLogits,
    SelectedDrafts,
)
from engine.speculation.block_head import BlockHead, Embed
from engine.speculation.draft_vocabulary import MASK, draft_columns
from engine.speculation.head_target import HeadTarget
from engine.speculative_config import SpeculativeConfig
from sampling.vocab_shard import VocabShard

MASK_EMBEDDING = "mask_embedding.pt"
"""A file beside the weights: the embedding [H] of the mask token, in place of the target's."""
UNREAD = ("confidence_head.",)
"""Beginnings of the names of tensors that estimate which drafts will be accepted."""


def load_block_head(config: SpeculativeConfig, of_target: HeadTarget) -> LoadedBlockHead:
    """Load the head of a "dflash" or "dspark" configuration.

    Raises:
        ModelError: it cannot be read or does not fit; the message has the field or the sizes.
    """
    target, device = of_target.model, of_target.device
    folder, hf_config = of_target.head_folder(config)
    own = block_config(folder, hf_config, config.method)
    spec = decoder_spec(hf_config)
    num_targets = getattr(hf_config, "num_target_layers", None)
    _check_target(folder, config, own, num_targets, target)
    tensors: WeightSource
    if of_target.is_dummy:
        tensors = DummyWeights(spec.initializer_range, device)
    else:
        tensors = Checkpoint(folder, Unread(frozenset({MASK}), beginnings=UNREAD))
    source = _Source(folder, spec, own, tensors, of_target)
    with torch.no_grad():
        loaded = source.load()
    tensors.finish()
    return loaded


def _check_target(
    folder: Path,
    config: SpeculativeConfig,
    own: BlockConfig,
    num_layers: int | None,
    target: CausalLM,
) -> None:
    """Check what the config says of the target, whose layers the head was made for."""
    k = config.num_speculative_tokens
    if k > own.most_drafts:
        raise ModelError(
            f"--speculative-config: num_speculative_tokens must be at most {own.most_drafts}, the "
            f"drafts of the blocks of {own.block_size} tokens that {folder} was trained on, got {k}"
        )
    if not target.num_feature_layers:
        raise ModelError(
            f"--speculative-config: method {config.method!r} reads the outputs of the target's "
            "layers, which a target on transformers' modules does not give; use another method"
        )
    if num_layers is not None and num_layers != target.num_feature_layers:
        raise ModelError(
            f"{folder}: the head was made for a target of {num_layers} layers "
            f"(num_target_layers), this one has {target.num_feature_layers}"
        )
    if not all(0 <= layer < target.num_feature_layers for layer in own.target_layers):
        raise ModelError(
            f"{folder}: the head reads layers {list(own.target_layers)} (target_layer_ids), "
            f"the target has {target.num_feature_layers}"
        )


class _Source:
    """The description, weights and target from which a head is built."""

    def __init__(
        self,
        folder: Path,
        spec: DecoderSpec,
        config: BlockConfig,
        tensors: WeightSource,
        of_target: HeadTarget,
    ) -> None:
        self.folder, self.spec, self.config = folder, spec, config
        self.tensors, self.target, self.shard = tensors, of_target.model, of_target.shard
        self.reader = WeightReader.of(tensors, self.target.dtype, of_target.device)
        self._angles = of_target.angles
        self.columns: torch.Tensor | None = None

    def load(self) -> LoadedBlockHead:
        """Read everything."""
        spec, config = self.spec, self.config
        self._check_sizes()
        mask_embedding = self._mask_embedding()
        head = BlockHead(spec, config, self.reader, self.target, self._embedding(), mask_embedding)
        drafts = self._drafts(OutputLogits(self._lm_head(), config.logit_scale, config.softcap))
        attention = spec.layers[0].sublayers[0]
        assert isinstance(attention, Attention)
        return LoadedBlockHead(
            head=head,
            drafts=drafts,
            mask_token_id=config.mask_token_id,
            anchored=config.anchored,
            angles=self._angles(attention.rotation),
            columns=self.columns,
            shard=self.shard,
            named=self.reader.named_weights(),
        )

    def _check_sizes(self) -> None:
        folder, spec, target, config = self.folder, self.spec, self.target, self.config
        if spec.vocab_size != target.vocab_size:
            raise ModelError(
                f"{folder}: the head's vocabulary is {spec.vocab_size}, "
                f"the target's {target.vocab_size}"
            )
        has_own = all(map(self._has, ("embed_tokens.weight", "lm_head.weight")))
        if not has_own and spec.hidden_size != target.hidden_size:
            raise ModelError(
                f"{folder}: the head's hidden size is {spec.hidden_size}, "
                f"the target's {target.hidden_size}"
            )
        if config.num_drafted < spec.vocab_size and not self._has("lm_head.weight"):
            raise ModelError(
                f"{folder}: draft_vocab_size {config.num_drafted} needs an LM head of its own, and "
                "there is no tensor lm_head.weight"
            )
        fan_in, layers = self.tensors.shape("fc.weight"), len(config.target_layers)
        if fan_in is not None and fan_in[1] != layers * target.hidden_size:
            raise ModelError(
                f"{folder}: the head takes features of size {fan_in[1]}, those of {layers} layers "
                f"of the target have {layers * target.hidden_size}"
            )

    def _has(self, name: str) -> bool:
        return self.tensors.shape(name) is not None

    def _embedding(self) -> Embed:
        if not self._has("embed_tokens.weight"):
            return self.target.embed
        rows = undivided(self.spec.vocab_size)
        matrix = self.reader.matrix("embed_tokens.weight", rows, self.spec.hidden_size)
        return lambda ids: F.embedding(ids, matrix)

    def _lm_head(self) -> Linear:
        """The LM head; one over fewer ids is on every rank, as of EAGLE heads."""
        if not self._has("lm_head.weight"):
            return self.target.logits
        vocab_size = self.spec.vocab_size
        self.columns = draft_columns(
            self.folder, self.tensors, self.reader, self.config.num_drafted, vocab_size
        )
        if self.columns is not None:
            self.shard = VocabShard.whole(vocab_size)
        return self._product("lm_head", self.spec.hidden_size)

    def _product(self, name: str, fan_in: int) -> Linear:
        """Read a product to the columns of the logits."""
        outputs = undivided(self.config.num_drafted)
        if self.columns is None:
            outputs = RankShare(self.shard.first, self.shard.width, self.shard.vocab_size)
        return logits_linear(self.reader.laid_out(name, outputs, fan_in))

    def _drafts(self, logits: OutputLogits) -> BlockDrafts:
        config, reader, rows = self.config, self.reader, undivided(self.spec.vocab_size)
        if config.markov_rank:
            w1 = reader.matrix("markov_head.markov_w1.weight", rows, config.markov_rank)
            return MarkovDrafts(
                logits, w1, self._product("markov_head.markov_w2", config.markov_rank)
            )
        selector = config.selector
        if selector is None:
            return IndependentDrafts(logits)
        name, rank = "candidate_selector", selector.rank
        projection = Projection(f"{name}.hidden_projection", (undivided(rank),))
        return SelectedDrafts(
            logits,
            predecessors=reader.matrix(f"{name}.predecessor_codebook", rows, rank),
            successors=reader.matrix(f"{name}.successor_codebook", rows, rank),
            projection=reader.linear([projection], undivided(self.spec.hidden_size)),
            top_k=selector.top_k,
            shard=self.shard,
        )

    def _mask_embedding(self) -> torch.Tensor | None:
        """The embedding of the mask token beside the weights, if there is one."""
        path = self.folder / MASK_EMBEDDING
        if not path.exists():
            return None
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds
            raise ModelError(f"{path}: {first_line(error)}; download it anew") from error
        if not isinstance(loaded, torch.Tensor) or loaded.numel() != self.spec.hidden_size:
            raise ModelError(f"{path}: must be a tensor of {self.spec.hidden_size} numbers")
        return loaded.flatten().to(self.reader.device, self.reader.dtype)
