"""Makes the demo model less sure of its tokens, or surer: its final norm times a factor.

    python -m demo.calibrate --factor 0.953125

Logits are multiplied by the factor, so greedy replies stay what they are. The EAGLE head is
changed with the model: it reads features that are s times as large, s being the factor, and what
it makes of them is s times as large too, in exact arithmetic. Its sum of embedding and features
is, where its weights of embeddings are times s; queries and keys stay, where their weights are
divided by s; values and what attention adds are s times as large by themselves; the norm after
them undoes it, so the feed-forward adds s times as much where its last weights are times s.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from demo import EAGLE_FOLDER, MODEL_FOLDER

Tensors = dict[str, torch.Tensor]


def calibrated_model(tensors: Tensors, factor: float) -> Tensors:
    """The model's weights, its logits times a factor."""
    return _times(tensors, {"model.norm.weight": factor})


def calibrated_head(tensors: Tensors, factor: float) -> Tensors:
    """The head's weights for features that are times a factor, its outputs likewise."""
    layer = "layers.0."
    factors = {
        **dict.fromkeys(
            (layer + "self_attn.q_proj.weight", layer + "self_attn.k_proj.weight"), 1 / factor
        ),
        layer + "mlp.down_proj.weight": factor,
    }
    changed = _times(tensors, factors)
    embeddings, features = changed["fc.weight"].chunk(2, dim=1)
    changed["fc.weight"] = torch.cat([_scaled(embeddings, factor), features], dim=1)
    return changed


def _times(tensors: Tensors, factors: dict[str, float]) -> Tensors:
    return tensors | {name: _scaled(tensors[name], factor) for name, factor in factors.items()}


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """A tensor times a factor, rounded once."""
    return (tensor.double() * factor).to(tensor.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description="Multiply the model's logits by a factor.")
    parser.add_argument("--factor", type=float, required=True)
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="the model's folder")
    parser.add_argument("--head", type=Path, default=EAGLE_FOLDER, help="its EAGLE head's folder")
    args = parser.parse_args()
    for folder, calibrated in ((args.model, calibrated_model), (args.head, calibrated_head)):
        path = folder / "model.safetensors"
        save_file(calibrated(load_file(path), args.factor), path, metadata={"format": "pt"})
        path.chmod(0o644)


if __name__ == "__main__":
    main()
