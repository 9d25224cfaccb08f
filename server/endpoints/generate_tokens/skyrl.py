"""`POST /skyrl/v1/generate`: token ids in, token ids out, routed experts as SkyRL reads them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.endpoints.generate_tokens.render import TokenRenderer
from server.endpoints.generate_tokens.reply_schema import SkyrlGenerateReply
from server.endpoints.generate_tokens.route import generated
from server.endpoints.generate_tokens.schema import GenerateTokensRequest
from server.endpoints.plain import PlainRoute
from server.schema.openapi import CHUNKS, describes

router = APIRouter(tags=["generation"], route_class=PlainRoute)


class _SkyrlRenderer(TokenRenderer):
    """Writes choices as SkyRL's client reads them, which takes no type but the narrowest."""

    def packed_routes(self, ids: npt.NDArray[Any]) -> dict[str, Any]:
        """Ids of experts in the narrowest type that holds them."""
        largest = int(ids.max(initial=0))
        narrow = np.uint8 if largest < 1 << 8 else np.int16 if largest < 1 << 15 else np.int32
        packed = np.ascontiguousarray(ids, dtype=narrow)
        data = base64.b64encode(packed.tobytes()).decode("ascii")
        return {"data": data, "shape": list(packed.shape), "dtype": packed.dtype.name}


@router.post(
    "/skyrl/v1/generate", **describes(GenerateTokensRequest, SkyrlGenerateReply, stream=CHUNKS)
)
async def generate(request: Request) -> Response:
    """Continue token ids with token ids; routed experts are in SkyRL's form."""
    return await generated(request, _SkyrlRenderer)
