"""Families all of whose layers have experts."""
