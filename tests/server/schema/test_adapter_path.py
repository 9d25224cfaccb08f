from __future__ import annotations

from pathlib import Path

from server.schema.adapter_path import path_refusal


def test_folders_outside_the_root_are_refused(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "sql", outside):
        folder.mkdir(parents=True)
    (root / "link").symlink_to(outside)
    assert path_refusal(str(root / "sql"), str(root)) is None
    assert path_refusal(str(root / "nowhere"), str(root)) is None
    for path in (outside, root / ".." / "outside", root / "link", tmp_path / "root2"):
        words = path_refusal(str(path), str(root))
        assert words is not None
        assert f"--lora-root ({root})" in words
    assert path_refusal(str(outside), None) is None
    assert path_refusal("a\0b", None) is not None
