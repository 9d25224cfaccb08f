"""`model_identity`: what two replicas must have in common to serve the same requests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from engine.contracts.info import EngineInfo
from server.version import VERSION

_WHOLE_BYTES = 64 << 20
_SAMPLE_BYTES, _NUM_SAMPLES = 4096, 64


def model_identity(folder: Path, info: EngineInfo) -> str:
    """Digest what decides which tokens a replica draws.

    That is the version, the files of the model folder, and the engine's limits and dtype, but not
    the machine: its device and the size of its cache may differ. Of a file above 64 MiB, which
    holds weights, the size and 64 pieces of 4 KiB at even distances are read, the header and the
    end among them.

    Args:
        folder: the model's files.
        info: the engine that serves them.
    """
    limits = (info.vocab_size, info.max_model_len, info.eos_token_ids)
    own = (VERSION, *limits, info.dtype, info.cache_dtype)
    digest = hashlib.sha256(msgspec.json.encode(own))
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            _add_file(digest, path)
    return digest.hexdigest()[:16]


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    """Digest a file, or pieces of a large one."""
    size = path.stat().st_size
    if size <= _WHOLE_BYTES:
        digest.update(path.read_bytes())
        return
    with path.open("rb") as file:
        for i in range(_NUM_SAMPLES):
            file.seek((size - _SAMPLE_BYTES) * i // (_NUM_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
