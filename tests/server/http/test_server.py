"""The server over TLS."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from tests.server.conftest import on_a_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A certificate that signs itself."""
    folder: Path = tmp_path_factory.mktemp("tls")
    files = {"ssl_certfile": str(folder / "cert.pem"), "ssl_keyfile": str(folder / "key.pem")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost"]
    command += ["-out", files["ssl_certfile"], "-keyout", files["ssl_keyfile"]]
    subprocess.run(command, check=True, capture_output=True)
    return files


async def test_requests_are_answered(certificate: dict[str, str]) -> None:
    async with on_a_port(tls=certificate) as site:
        assert site.url.startswith("https:")
        reply = await site.complete(prompt="abc", max_tokens=3)
        assert reply["choices"][0]["text"] == "abc"


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_a_handshake_has_as_long_as_headers_have(
    sent: bytes, certificate: dict[str, str]
) -> None:
    """Of no byte, or of the beginning of a first message; asyncio would wait for 60 s."""
    async with on_a_port(tls=certificate, header_timeout_s=0.3) as site:
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        began = time.perf_counter()
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        assert time.perf_counter() - began > 0.25
        writer.close()


async def test_headers_have_their_time_after_the_handshake(certificate: dict[str, str]) -> None:
    context = ssl.create_default_context(cafile=certificate["ssl_certfile"])
    async with on_a_port(tls=certificate, header_timeout_s=0.3) as site:
        port = int(site.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /version HTTP/1.1\r\n")
        async with asyncio.timeout(10):
            assert (await reader.read()).startswith(b"HTTP/1.1 408")
        writer.close()
