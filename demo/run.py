"""The settings of a training run, and its outcome."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of a run besides the corpus; each field is a flag. Rates are peaks."""

    steps: int = 10000
    batch_size: int = 64  # windows of text
    window_tokens: int = 2048  # the model's context; shorter windows are cheaper on a CPU
    num_dialogues: int = 16  # a step
    dialogue_weight: float = 0.5  # of their loss, relative to the text's
    num_decisions: int = 32  # a step
    decision_weight: float = 0.5  # of their loss, relative to the text's
    workers: int = 0  # processes that draw dialogues and decisions
    matrix_rate: float = 0.03  # Muon, on the layers' matrices
    vector_rate: float = 0.006  # AdamW, on embedding and norms
    weight_decay: float = 0.2
    dropout: float = 0.15  # without it the held-out figure rises after some 15 passes
    warmup: float = 0.02  # share of the steps
    cooldown: float = 0.6  # share of the steps
    seconds: float = 0.0  # end by the clock, after as many steps as are made; 0: after `steps`
    evaluations: int = 20
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """A finished run: (step, held-out bits per byte) as measured on the way, and its cost.

    `start` says in words what it started from.
    """

    settings: TrainingSettings
    num_steps: int
    curve: list[tuple[int, float]]
    seconds: float
    hardware: str
    start: str
