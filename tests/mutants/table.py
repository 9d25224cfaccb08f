"""All mutants. `python -m tests.mutants.run` puts each into a copy of the project."""

from __future__ import annotations

from tests.mutants.engine import ENGINE, RUNNER, SCORING
from tests.mutants.invariance import INVARIANCE
from tests.mutants.memory import MEMORY
from tests.mutants.mutant import Mutant
from tests.mutants.planning import PLANNING
from tests.mutants.recurrent import RECURRENT
from tests.mutants.sampling import SAMPLING
from tests.mutants.server import SERVER
from tests.mutants.structured import STRUCTURED

MUTANTS: tuple[Mutant, ...] = (
    *(*SERVER, *PLANNING, *STRUCTURED, *ENGINE),
    *(*SCORING, *RUNNER, *SAMPLING, *MEMORY, *RECURRENT, *INVARIANCE),
)
