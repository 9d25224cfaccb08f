"""What clients send to load and unload adapters. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from server.schema.base import BodyModel
from server.schema.fields import Accepted, Base64, NotYet

AdapterName = Annotated[str, Field(min_length=1, max_length=256)]
FolderPath = Annotated[str, Field(min_length=1, max_length=4096)]


class LoadAdapterRequest(BodyModel):
    """Load an adapter from a folder or from the body, or replace one."""

    lora_name: AdapterName = Field(description="The name by which `model` asks for it.")
    lora_path: FolderPath | None = Field(
        None,
        description="Its folder on the server, as PEFT's `save_pretrained` writes it; beside "
        "`tensors` only what lists call it.",
    )
    config_dict: dict[str, Any] | None = Field(
        None, description="What its `adapter_config.json` says, beside `tensors`."
    )
    tensors: Base64 | None = Field(
        None, description="Its `adapter_model.safetensors` in base64, in place of a folder."
    )
    load_inplace: bool | None = Field(
        None,
        description="The name may stand for another adapter, which is replaced; replies that are "
        "under way keep it. The default is false.",
    )
    base_model_name: str | None = Field(
        None, description="The model that it is of, which must be the one that is served."
    )
    is_3d_lora_weight: Accepted = None


class UnloadAdapterRequest(BodyModel):
    """Take an adapter's name away; replies that are under way keep the adapter."""

    lora_name: AdapterName = Field(description="The adapter's name.")
    lora_int_id: Any = Field(None, description="vLLM's number, which has no effect.")


class LoadFolderBody(BodyModel):
    """Load an adapter from a folder."""

    lora_name: AdapterName = Field(description="The name by which `model` asks for it.")
    lora_path: FolderPath = Field(
        description="Its folder on the server, as PEFT's `save_pretrained` writes it."
    )
    pinned: Accepted = None
    lora_id: Accepted = None


class LoadTensorsBody(BodyModel):
    """Load an adapter from tensors of another process of this machine."""

    lora_name: AdapterName = Field(description="The name by which `model` asks for it.")
    config_dict: dict[str, Any] = Field(description="What its `adapter_config.json` says.")
    serialized_named_tensors: list[Base64] | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Pickled handles of its tensors in base64: one copy, or one for each rank.",
    )
    serialized_tensors: Base64 | None = Field(
        None, description="One copy, as SGLang named it before."
    )
    load_format: str | None = Field(
        None, max_length=64, description="What the pickles hold says it too."
    )
    pinned: Accepted = None
    lora_id: Accepted = None
    added_tokens_config: NotYet = None


class UnloadBody(BodyModel):
    """Take an adapter's name away."""

    lora_name: AdapterName = Field(description="The adapter's name.")
    lora_id: Accepted = None
