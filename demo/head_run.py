"""The settings of training runs of heads that draft, and their outcomes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a run besides corpus and target; each field is a flag. Rates are peaks."""

    steps: int = 4000
    batch_tokens: int = 16384
    written_windows: int = 2048  # of the target's own text
    dialogues: int = 4096
    step_weight: float = 0.85  # of a draft's loss, relative to the one before
    overlap_weight: float = 2.0  # of 1 - sum min(p, q), the share of refused drafts
    matrix_rate: float = 0.02  # Muon
    vector_rate: float = 0.003  # AdamW
    weight_decay: float = 0.1
    warmup: float = 0.02  # share of the steps
    cooldown: float = 0.6  # share of the steps
    seed: int = 0


@dataclass(frozen=True)
class EagleSettings(HeadSettings):
    """Settings of a run of the EAGLE head."""

    draft_steps: int = 6
    feature_weight: float = 0.1  # of the smooth L1 distance of features


@dataclass(frozen=True)
class BlockSettings(HeadSettings):
    """Settings of a run of the block head."""

    anchors: int = 48  # blocks of a window, from random places


@dataclass(frozen=True)
class HeadRun:
    """A finished run of the EAGLE head, its cost, and in words what it started from."""

    settings: EagleSettings
    start: str
    seconds: float
    hardware: str
    torch_version: str
