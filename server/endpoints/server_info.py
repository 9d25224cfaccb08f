"""`/server_info`: what a person who watches the server wants to know of it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.endpoints.plain import PlainRoute
from server.errors import json_response
from server.schema.openapi import replies
from server.schema.replies import ServerInfoReply
from server.version import VERSION

router = APIRouter(tags=["server"], route_class=PlainRoute)


@router.get("/server_info", responses=replies(ServerInfoReply))
async def server_info(request: Request) -> Response:
    """Describe the engine, the limits of requests, and the flags that were given."""
    context = context_of(request)
    config, info = context.config, context.info
    content = {
        "version": VERSION,
        "model": config.model_names[0],
        "root": config.model_root,
        "device": info.device,
        "dtype": info.dtype,
        "sampler": info.sampler,
        "vocab_size": info.vocab_size,
        "max_model_len": info.max_model_len,
        "max_num_seqs": info.max_rows,
        "block_size": info.block_size,
        "num_blocks": info.num_blocks,
        "max_logprobs": config.max_logprobs,
        "logprobs_mode": config.logprobs_mode,
        "metrics_prefix": config.metrics_prefix,
        "verify": bool(config.verify_command),
        "quantization": context.quantization,
        "flags": list(config.flags),
    }
    return json_response(content)
