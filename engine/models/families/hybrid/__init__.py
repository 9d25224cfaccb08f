"""Families whose layers keep a state a row, most of them beside attention."""
