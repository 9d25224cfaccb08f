"""The small model that ships with the project, and the scripts that made it."""

from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"

__all__ = ["MODEL_FOLDER"]
