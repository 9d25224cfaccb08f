"""How hidden states of a model become embeddings, as its `modules.json` says.

The modules are those of sentence-transformers: the model, a pooling, and what follows it. The last
token's state is served, normalized or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from engine.arrays import Float32Array, Int32Array
from engine.request import ScoringRequest
from server.config import Pooling
from server.scoring.labels import Float64Array
from server.text.shared_prefix import common_prefix

_LAST, _PREFIX = "pooling_mode_lasttoken", "pooling_mode_"


def pooling_of(model: str) -> Pooling:
    """What a model's folder says; where it says nothing, the last token's state, normalized."""
    folder = Path(model)
    try:
        modules = orjson.loads((folder / "modules.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return Pooling()
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules]
    if unknown := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
        return Pooling(refusal=f"its modules.json has {', '.join(unknown)}, which is not served")
    for module, kind in zip(modules, kinds, strict=True):
        if kind == "Pooling" and (own := _pooling_modes(folder / str(module.get("path", "")))):
            words = f"its pooling is {', '.join(own)}: only the last token's is served"
            return Pooling(refusal=words)
    return Pooling(normalizes="Normalize" in kinds)


def _pooling_modes(folder: Path) -> list[str]:
    """The modes of a pooling besides that of the last token."""
    try:
        config: dict[str, Any] = orjson.loads((folder / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return []
    asked = [name for name, value in config.items() if name.startswith(_PREFIX) and value is True]
    return [name.removeprefix(_PREFIX) for name in asked if name != _LAST]


class EmbeddingPrompts(NamedTuple):
    """Texts whose last token's hidden states are asked for."""

    query: Int32Array
    items: list[Int32Array]

    @classmethod
    def of(cls, token_ids: list[Int32Array]) -> EmbeddingPrompts:
        """The prompts of texts, what they begin with alike taken out."""
        prefixed = common_prefix([ids.tolist() for ids in token_ids])
        return cls(prefixed.prefix, prefixed.rests)

    @property
    def num_tokens(self) -> int:
        """Tokens that may be computed."""
        return len(self.query) + sum(map(len, self.items))

    def request(self, handle: int) -> ScoringRequest:
        """The engine's request."""
        return ScoringRequest(
            handle=handle,
            query_token_ids=self.query,
            item_token_ids=np.concatenate(self.items),
            item_lens=np.array([len(item) for item in self.items], dtype=np.int32),
            num_read=np.ones(len(self.items), dtype=np.int32),
            id_lists=np.zeros((1, 0), dtype=np.int32),
            embeds=True,
        )


def pooled(hidden: Float32Array, dimensions: int | None, pooling: Pooling) -> Float32Array:
    """Embeddings float32 [N, dimensions] of the last tokens' hidden states.

    Fewer dimensions than the model's are the first ones, as Matryoshka embeddings are cut, and are
    normalized again.
    """
    cut: Float64Array = hidden[:, :dimensions].astype(np.float64)
    if pooling.normalizes:
        lengths = np.linalg.norm(cut, axis=1, keepdims=True)
        cut = cut / np.where(lengths > 0, lengths, 1.0)
    return cut.astype(np.float32)
