"""The table of `tailrace models` and docs/models.md, made of what tests check.

`python -m tests.engine.models.families.listing` stores both; a test holds them together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.models.families.table import ARCHITECTURES, TESTED_QUANTIZED, decoder_spec
from engine.models.layers.decoder_spec import DecoderSpec
from engine.models.layers.layer import SublayerSpec
from engine.models.layers.parallel import Parallel
from engine.models.layers.side_by_side import SideBySide
from server.command.listing import COLUMNS, Row, cells
from tests.engine.models.families.cuda_models import FAMILIES as ON_GPU
from tests.engine.models.families.hybrid_models import FAMILIES as HYBRIDS
from tests.engine.models.families.hybrid_models import config_of
from tests.engine.models.families.hybrid_shards import WHOLE_NORM
from tests.engine.models.families.shard_models import MODELS as DIVIDED
from tests.engine.models.small_models import MODELS

ROOT = Path(__file__).parents[4]
STORED, PAGE = ROOT / "server" / "command" / "served_models.json", ROOT / "docs" / "models.md"
BETWEEN = re.compile(r"(<!-- models -->\n).*?(<!-- end of models -->\n)", re.S)
TEXTS = {
    "gemma4": "gemma4_text",
    "mistral3": "ministral3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Model types of checkpoints with images, and the text that is served of them."""
WORDS = {
    "Attention": "attention",
    "ChannelDelta": "delta rule by channel",
    "DenseAndExperts": "experts beside MLP",
    "ExpertMlp": "experts",
    "GatedAttention": "gated attention",
    "GatedDelta": "gated delta rule",
    "LatentAttention": "latent attention",
    "Mlp": "MLP",
    "RotatedNormAttention": "attention",
    "SharedKeyAttention": "attention",
    "ShortConvolution": "short convolution",
    "StateSpace": "Mamba 2",
}
"""What is said of kinds of layers; others are parts of layers."""


def rows() -> list[Row]:
    """The rows, by model type."""
    hybrids = {name: config_of(name) for name in HYBRIDS}
    configs = [*MODELS.values(), *hybrids.values()]
    divided = [*DIVIDED.values(), *(hybrids[name] for name in HYBRIDS if name not in WHOLE_NORM)]
    on_gpu = {config.model_type for config in (*ON_GPU.values(), *hybrids.values())}
    in_parts = {config.model_type for config in divided}
    made = []
    for model_type in sorted(architecture.model_type for architecture in ARCHITECTURES.values()):
        text = TEXTS.get(model_type, model_type)
        specs = [decoder_spec(config) for config in configs if config.model_type == text]
        assert specs, f"no test checks the logits of {model_type}"
        made.append(
            {
                "model_type": model_type,
                "layers": layers_of(specs),
                "quantized": text in TESTED_QUANTIZED,
                "drafts": ["mtp"] if any(spec.drafting for spec in specs) else [],
                "ranks": text in in_parts,
                "gpu": text in on_gpu | TESTED_QUANTIZED,
            }
        )
    return made


def layers_of(specs: list[DecoderSpec]) -> list[str]:
    """The kinds of layers of some decoders."""
    kinds = {
        WORDS[name]
        for spec in specs
        for layer in spec.layers
        for part in parts_of(layer.sublayers)
        if (name := type(part).__name__) in WORDS
    }
    return sorted(kinds)


def parts_of(sublayers: Any) -> Iterator[SublayerSpec]:
    """Sublayers, and those that are side by side one by one."""
    for sublayer in sublayers:
        if isinstance(sublayer, Parallel):
            yield from (sublayer.attention, sublayer.mlp)
        elif isinstance(sublayer, SideBySide):
            yield from sublayer.mixers
        else:
            yield sublayer


def page_table(rows: list[Row]) -> str:
    """The table for docs/models.md."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS), *map(cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    current = rows()
    STORED.write_text(json.dumps(current, indent=1) + "\n")
    table = page_table(current)
    PAGE.write_text(BETWEEN.sub(lambda found: found[1] + table + found[2], PAGE.read_text()))
