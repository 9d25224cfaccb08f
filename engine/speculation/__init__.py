"""Drafters: who proposes the tokens that a step verifies."""
