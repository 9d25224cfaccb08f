"""Every kind of drafter, written beside a tiny target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM, PreTrainedModel

from engine.speculative_config import Method
from tests.engine.speculation.target_of_heads import DRAFT_IDS, write_target
from tests.engine.speculation.tiny_blocks import write_dflash, write_dflash2, write_dspark
from tests.engine.speculation.tiny_heads import write_eagle1, write_eagle3
from tests.engine.speculation.tiny_mtp import write_with_mtp
from tests.engine.tiny_models import VOCAB, write_model


class Kind(NamedTuple):
    """A method, what writes its head into a folder, and how its drafts can be made."""

    method: Method
    write: Callable[[Path], Any] | None = None
    is_drawn: bool = True


KINDS = {
    "eagle": Kind("eagle", lambda folder: write_eagle1(folder, bias=False)),
    "eagle3": Kind("eagle3", lambda folder: write_eagle3(folder, draft_ids=DRAFT_IDS)),
    "dflash": Kind("dflash", write_dflash),
    "dflash2": Kind("dflash", write_dflash2),
    "dspark": Kind("dspark", write_dspark),
    "draft_model": Kind("draft_model", lambda folder: write_model("qwen3", folder, seed=3)),
    "mtp": Kind("mtp"),
    "ngram": Kind("ngram", is_drawn=False),
    "suffix": Kind("suffix", is_drawn=False),
}


def write_kind(name: str, folder: Path) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Write a target into `target` and a drafter of a kind into `head`.

    Returns:
        The target, and the fields of `SpeculativeConfig` that name the drafter.
    """
    kind = KINDS[name]
    if kind.method == "mtp":
        write_with_mtp(folder / "target", ["full_attention"] * 2, VOCAB)
        target = AutoModelForCausalLM.from_pretrained(folder / "target")
        return target.eval(), {"method": "mtp"}
    fields: dict[str, Any] = {"method": kind.method}
    if kind.write is not None:
        kind.write(folder / "head")
        fields["model"] = str(folder / "head")
    if kind.method == "ngram":
        fields |= {"prompt_lookup_min": 1, "prompt_lookup_max": 3}
    return write_target(folder / "target"), fields
