"""A grammar of patches, and a patch that keeps to it."""

from __future__ import annotations

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk   // one file
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""Codex's `apply_patch`, as it sends it."""
GOOD = (
    '*** Begin Patch\n*** Update File: a "b".py\n@@ def f():\n-x = \'\\n\'\n+x = "\\t\\u0041"\n é\n'
    "*** Add File: z\n+\n+1\t2\n*** End Patch\n"
)
