"""Certificates for tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(folder: Path) -> dict[str, str]:
    """A certificate that signs itself, by uvicorn's names of its files."""
    files = {"ssl_certfile": str(folder / "cert.pem"), "ssl_keyfile": str(folder / "key.pem")}
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost"]
    command += ["-out", files["ssl_certfile"], "-keyout", files["ssl_keyfile"]]
    subprocess.run(command, check=True, capture_output=True)
    return files
