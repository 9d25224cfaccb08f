"""`/server_info`: what serves, and how it was started."""

from __future__ import annotations

from msgspec import structs

from engine.contracts.info import ErrorStatement
from server.endpoints.models.reply_schema import ModelCard
from server.endpoints.server_info import ServerInfoReply
from server.version import VERSION
from tests.server.conftest import in_process


async def test_the_reply() -> None:
    flags = ("--port 1", "--api-key ...")
    async with in_process(flags=flags, max_logprobs=7, metrics_prefix="x_") as site:
        reply = (await site.client.get("/server_info")).json()
    ServerInfoReply.model_validate(reply)
    assert set(reply) == set(ServerInfoReply.model_fields)
    info = site.engine.info
    assert reply["version"] == VERSION
    assert reply["flags"] == list(flags)
    assert (reply["max_logprobs"], reply["metrics_prefix"]) == (7, "x_")
    assert (reply["device"], reply["num_blocks"]) == (info.device, info.num_blocks)
    assert reply["verify"] is False
    assert reply["quantization"] is None


async def test_the_statement_of_error() -> None:
    """The same at `/v1/models`; a figure that is no number is null."""
    error = ErrorStatement(
        scheme="fp8", reference="weights", mean_kl=0.001234, max_logprob_gap=None, text="t"
    )
    async with in_process() as site:
        site.engine.info = structs.replace(site.engine.info, quantization=error)
        about = (await site.client.get("/server_info")).json()
        (card,) = (await site.client.get("/v1/models")).json()["data"]
    ServerInfoReply.model_validate(about)
    ModelCard.model_validate(card)
    assert about["quantization"] == card["quantization"]
    assert card["quantization"] == {
        "scheme": "fp8",
        "reference": "weights",
        "mean_kl": 0.001234,
        "max_logprob_gap": None,
        "text": "t",
    }


async def test_the_fingerprint() -> None:
    """Replies and `/v1/models` have the same one, of the version and the engine's."""
    async with in_process() as site:
        site.engine.info = structs.replace(site.engine.info, fingerprint="abc")
        reply = await site.complete(prompt="x", max_tokens=1)
        (card,) = (await site.client.get("/v1/models")).json()["data"]
    wanted = f"tailrace-{VERSION}-abc"
    assert reply["system_fingerprint"] == card["system_fingerprint"] == wanted
