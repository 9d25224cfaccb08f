"""`/server_info`: what a person who watches the server wants to know of it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from server.context import Context, context_of
from server.endpoints.plain import PlainRoute
from server.errors import json_response
from server.schema.openapi import replies
from server.schema.replies import QuantizationReply
from server.version import VERSION

router = APIRouter(tags=["server"], route_class=PlainRoute)


class VllmConfigReply(BaseModel):
    """A part of vLLM's configuration, as its `/server_info?config_format=json` has it."""

    model_config_: dict[str, Any] = Field(alias="model_config")
    parallel_config: dict[str, int]
    weight_transfer_config: dict[str, str]
    lora_config: None


class ServerInfoReply(BaseModel):
    """What serves, and how it was started."""

    version: str
    model: str = Field(description="The first of the model's names.")
    root: str = Field(description="The folder or hub id of the model.")
    device: str
    dtype: str
    sampler: str = Field(description="Which path draws rows, in words.")
    vocab_size: int
    max_model_len: int = Field(description="Prompt and generated tokens together, at most.")
    max_num_seqs: int = Field(description="Choices running at once, at most.")
    block_size: int = Field(description="Tokens in a block of the KV cache.")
    num_blocks: int
    max_logprobs: int = Field(description="Top tokens a request may ask for; -1 for no cap.")
    logprobs_mode: str = Field(description="The mode of requests that name none.")
    metrics_prefix: str = Field(description="What the names of metrics begin with.")
    verify: bool = Field(description="Whether `/verify` runs the self-test.")
    quantization: QuantizationReply | None = Field(description="As at `/v1/models`.")
    vllm_config: VllmConfigReply | None = Field(
        description="What trainers read of vLLM's configuration, where weights may be updated."
    )
    flags: list[str] = Field(description="The settings that were given, without keys.")


def _vllm_config(context: Context) -> dict[str, Any]:
    """What TRL reads before it updates weights."""
    config, info = context.config, context.info
    return {
        "model_config": {
            "model": config.model_root,
            "dtype": f"torch.{info.dtype}",
            "max_model_len": info.max_model_len,
            "logprobs_mode": config.logprobs_mode,
            "max_logprobs": config.max_logprobs,
        },
        "parallel_config": {"tensor_parallel_size": info.num_ranks, "data_parallel_size": 1},
        "weight_transfer_config": {"backend": "nccl"},
        "lora_config": None,
    }


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
        "vllm_config": _vllm_config(context) if config.weight_updates else None,
        "flags": list(config.flags),
    }
    return json_response(content)
