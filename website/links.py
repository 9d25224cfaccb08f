"""Where pages are in the site, and where their links lead there."""

from __future__ import annotations

import re

OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages beside `docs/`, and where they are in the site."""
_LINK = re.compile(r"\]\((?:\.\./)*(?:docs/)?([\w./-]+\.(?:md|webp))(#[\w-]*)?\)")


def with_links_of_site(markdown: str, path: str) -> str:
    """A page with its links as they are in the site.

    Args:
        path: where the page is in the site.
    """
    is_outside, up = path in OUTSIDE.values(), "../" * path.count("/")

    def link(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        if target in OUTSIDE:
            return f"]({up}{OUTSIDE[target]}{anchor})"
        return f"]({target}{anchor})" if is_outside else match[0]

    return _LINK.sub(link, markdown)
