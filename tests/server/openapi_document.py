"""The OpenAPI document of the server, for any model and version.

`python -m tests.server.openapi_document` stores it in docs/openapi.json, where it is read by other
programs; a test holds the two together.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from server.app import create_app
from server.config import ServerConfig
from server.schema.ids import ID_MAX
from server.schema.openapi import add_openapi
from tests.fakes import FakeEngine, byte_tokenizer

STORED = Path(__file__).parents[2] / "docs" / "openapi.json"


def document() -> dict[str, Any]:
    """The document, with the widest bound of token ids and without the version."""
    app = create_app(
        FakeEngine(),
        byte_tokenizer(),
        ServerConfig(model_names=("model",), weight_updates=True, enable_lora=True),
    )
    app.state.context.close()
    add_openapi(app, ID_MAX + 1)
    made: dict[str, Any] = json.loads(json.dumps(app.openapi()))
    del made["info"]["version"]
    return made


if __name__ == "__main__":
    STORED.write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n")
