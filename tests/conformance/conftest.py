"""Where the server under test is: CONFORMANCE_BASE_URL, or a fake one started here."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.server.conftest import on_a_port


@pytest.fixture
async def api() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the server; CONFORMANCE_API_KEY is sent where it is set."""
    key = os.environ.get("CONFORMANCE_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = os.environ.get("CONFORMANCE_BASE_URL")
    if url is None:
        async with on_a_port() as site:
            yield site.client
        return
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
async def model(api: httpx.AsyncClient) -> str:
    """The first model it serves."""
    name: str = (await api.get("/v1/models")).json()["data"][0]["id"]
    return name
