"""What clients send to load and unload adapters. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from server.schema.base import BodyModel
from server.schema.fields import NotYet

AdapterName = Annotated[str, Field(min_length=1, max_length=256)]


class LoadAdapterRequest(BodyModel):
    """Load an adapter, or replace one."""

    lora_name: AdapterName = Field(description="The name by which `model` asks for it.")
    lora_path: str = Field(
        min_length=1,
        max_length=4096,
        description="Its folder on the server, as PEFT's `save_pretrained` writes it.",
    )
    load_inplace: bool | None = Field(
        None,
        description="The name may stand for another adapter, which is replaced; replies that are "
        "under way keep it. The default is false.",
    )
    base_model_name: str | None = Field(
        None, description="The model that it is of, which must be the one that is served."
    )
    is_3d_lora_weight: NotYet = None


class UnloadAdapterRequest(BodyModel):
    """Take an adapter's name away; replies that are under way keep the adapter."""

    lora_name: AdapterName = Field(description="The adapter's name.")
    lora_int_id: Any = Field(None, description="vLLM's number, which has no effect.")
