"""Routed experts: which experts the tokens of a prompt and its reply took."""

from __future__ import annotations

import msgspec

from engine.arrays import Float32Array, RouteIds
from engine.messages.request import RoutesParams
from engine.messages.step_output import ChoiceRoutes
from server.errors import bad_request
from server.generation.served import ServedModel

FLAG = "--enable-return-routed-experts"


def routes_params(
    served: ServedModel,
    param: str,
    *,
    start: int,
    has_weights: bool = False,
) -> RoutesParams:
    """What is asked of the engine; raises `ApiError`.

    Args:
        param: what the client calls the wish.
    """
    if served.info.num_routed is None:
        words = f"{param} needs a server with {FLAG}, of a model with experts"
        raise bad_request(param, words)
    return RoutesParams(start=start, has_weights=has_weights)


class Routes(msgspec.Struct, frozen=True):
    """What a choice reports: ids [T, L, k], and weights where asked for, from token `start` on."""

    start: int
    ids: RouteIds
    weights: Float32Array | None

    @classmethod
    def of(cls, routes: ChoiceRoutes, num_tokens: int) -> Routes:
        """Those of the first `num_tokens` tokens of prompt and reply, without the last of these.

        A reply may have dropped tokens that were drawn.
        """
        kept = slice(max(num_tokens - 1 - routes.start, 0))
        weights = None if routes.weights is None else routes.weights[kept]
        return cls(routes.start, routes.ids[kept], weights)
