"""`/server_info`: what serves, and how it was started."""

from __future__ import annotations

from server.schema.replies import ServerInfoReply
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
