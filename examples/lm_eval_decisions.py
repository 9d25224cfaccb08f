"""Let lm-evaluation-harness ask for decisions: all choices of a question in one request.

The log-likelihoods are those of its own completions backend. It scores continuations of a text, so
the server has to put a state to the model as it is, without words of its own:

    echo '{{ messages[-1].content }}' > chat.jinja && echo '{{ state }}' > decision.jinja
    tailrace serve --chat-template chat.jinja --decision-template decision.jinja
    python examples/lm_eval_decisions.py http://127.0.0.1:8000/v1 tailrace-demo arc_easy

A choice that begins another one has the token after a reply added, so that one excludes the other.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import requests
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

TIMEOUT_S = 600


class DecisionsLM(LM):
    """Log-likelihoods of continuations by `/v1/decisions`.

    Args:
        base_url: the server's address, which ends in /v1.
        model: the model's name there.
    """

    def __init__(self, base_url: str, model: str) -> None:
        super().__init__()
        self._url = f"{base_url}/decisions"
        self._model = model
        self._session = requests.Session()

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation; whether it is the likeliest text is not read."""
        choices: dict[str, dict[str, float]] = {}
        for request in requests:
            context, continuation = request.args
            choices.setdefault(context, {})[continuation] = 0.0
        for context, values in choices.items():
            values.update(self._decided(context, list(values)))
        return [(choices[context][choice], False) for context, choice in map(_args, requests)]

    def _decided(self, context: str, choices: list[str]) -> dict[str, float]:
        """The log-likelihood of each choice after a context; the server wants at least two."""
        offered = choices if len(choices) > 1 else [*choices, f"{choices[0]}."]
        question = {
            "type": "choice",
            "instructions": "Which text follows?",
            "choices": [{"value": choice} for choice in offered],
        }
        body: dict[str, Any] = {
            "model": self._model,
            "input": context,
            "questions": [question],
            "labels": "options",
            "diagnostics": True,
        }
        reply = self._session.post(self._url, json=body, timeout=TIMEOUT_S)
        reply.raise_for_status()
        (answer,) = reply.json()["answers"]
        (read,) = answer["diagnostics"]["orders"]
        return dict(zip(offered, read["logprobs"], strict=True))

    def loglikelihood_rolling(self, requests: list[Instance]) -> Any:
        """Whole texts are no decisions."""
        raise NotImplementedError("decisions choose between continuations: use local-completions")

    def generate_until(self, requests: list[Instance]) -> Any:
        """Nothing is generated."""
        raise NotImplementedError("decisions generate nothing: use local-completions")


def _args(request: Instance) -> tuple[str, str]:
    context, choice = request.args
    return context, choice


def main(base_url: str, model: str, tasks: str, include_path: str | None = None) -> None:
    """Evaluate tasks, with commas between them, and print their results as JSON."""
    found = simple_evaluate(
        model=DecisionsLM(base_url, model),
        tasks=tasks.split(","),
        task_manager=TaskManager(include_path=include_path),
        bootstrap_iters=0,
    )
    print(json.dumps(found["results"], default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
