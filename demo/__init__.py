"""The small model that ships with the project, its EAGLE head, and the scripts that made them."""

from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"
EAGLE_FOLDER = Path(__file__).parent / "eagle"

__all__ = ["EAGLE_FOLDER", "MODEL_FOLDER"]
