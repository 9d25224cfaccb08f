"""The settings of a training run of the EAGLE head, and its outcome."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadSettings:
    """Settings of a run besides corpus and target; each field is a flag. Rates are peaks."""

    steps: int = 4000
    batch_tokens: int = 16384
    written_windows: int = 2048  # of the target's own text
    dialogues: int = 4096
    draft_steps: int = 4
    step_weight: float = 0.85  # of a draft step's loss, relative to the step before
    overlap_weight: float = 2.0  # of 1 - sum min(p, q), the share of refused drafts
    feature_weight: float = 0.1  # of the smooth L1 distance of features
    matrix_rate: float = 0.02  # Muon
    vector_rate: float = 0.003  # AdamW
    weight_decay: float = 0.1
    warmup: float = 0.02  # share of the steps
    cooldown: float = 0.6  # share of the steps
    seed: int = 0


@dataclass(frozen=True)
class HeadRun:
    """A finished run and what it cost; `start` says in words what it started from."""

    settings: HeadSettings
    start: str
    seconds: float
    hardware: str
    torch_version: str
