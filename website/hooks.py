"""What mkdocs calls while it builds the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import figures, reference
from website.links import OUTSIDE, with_links_of_site

ROOT = Path(__file__).parent.parent


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that are not in `docs/`."""
    made = {path: (ROOT / name).read_text() for name, path in OUTSIDE.items()}
    for path, content in (made | reference.pages() | figures.pages()).items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where pages are in the site."""
    return with_links_of_site(markdown, page.file.src_uri)
