"""The text the demo model learns: the source of the Python standard library.

A corpus is a mapping from path (relative to the library's folder, with forward slashes) to text.
Files that a build writes for one machine are left out, so one Python version gives one corpus.
"""

import hashlib
import io
import platform
import sysconfig
import tarfile
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_ONE_IN = 25
EXCLUDED_FOLDERS = frozenset({"site-packages", "__pycache__"})
EXCLUDED_PREFIXES = ("_sysconfigdata_", "config-")


@dataclass(frozen=True)
class Corpus:
    """Source files of one Python version, in path order, no text twice."""

    python: str
    files: dict[str, str]

    def training(self) -> list[str]:
        """Texts that tokenizer and weights may see."""
        return [text for path, text in self.files.items() if not is_held_out(path)]

    def held_out(self) -> list[str]:
        """Texts kept apart for the measurement."""
        return [text for path, text in self.files.items() if is_held_out(path)]


def is_held_out(path: str) -> bool:
    """True for one file in 25: SHA-256 of the path, first four bytes big-endian, divisible by 25.

    >>> is_held_out("calendar.py"), is_held_out("argparse.py")
    (False, False)
    """
    digest = hashlib.sha256(path.encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def is_library_source(path: Path) -> bool:
    """Whether a path relative to the library's folder is part of every installation."""
    if EXCLUDED_FOLDERS.intersection(path.parts):
        return False
    return not any(part.startswith(EXCLUDED_PREFIXES) for part in path.parts)


def decode_unique(sources: dict[str, bytes]) -> dict[str, str]:
    """Decode as UTF-8; skip what is empty, not UTF-8, or the copy of an earlier path's text."""
    files: dict[str, str] = {}
    seen: set[bytes] = set()
    for path, source in sorted(sources.items()):
        if source in seen:
            continue
        seen.add(source)
        try:
            text = source.decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            files[path] = text
    return files


def collect() -> Corpus:
    """Read the standard library of the running interpreter."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path.relative_to(library) for path in library.rglob("*.py")]
    sources = {
        path.as_posix(): (library / path).read_bytes() for path in paths if is_library_source(path)
    }
    return Corpus(platform.python_version(), decode_unique(sources))


def write_archive(corpus: Corpus, archive: Path) -> str:
    """Write a .tar.xz whose bytes depend on the corpus alone; returns their SHA-256."""
    with tarfile.open(archive, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
        for path, text in corpus.files.items():
            source = text.encode()
            member = tarfile.TarInfo(f"python-{corpus.python}/{path}")
            member.size = len(source)
            tar.addfile(member, io.BytesIO(source))
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def read_archive(archive: Path) -> Corpus:
    """Read what `write_archive` wrote."""
    sources: dict[str, bytes] = {}
    python = ""
    with tarfile.open(archive, "r:xz") as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                continue
            folder, _, path = member.name.partition("/")
            python = folder.removeprefix("python-")
            sources[path] = content.read()
    return Corpus(python, decode_unique(sources))
