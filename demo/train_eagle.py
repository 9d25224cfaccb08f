"""Train the demo model's EAGLE head: the trained target and the standard library in, a folder out.

python -m demo.train_eagle --corpus stdlib.tar.xz     # on one GPU, about three minutes
"""

import torch
from torch.nn.functional import smooth_l1_loss
from transformers import LlamaForCausalLM

from demo import EAGLE_FOLDER
from demo.eagle_card import write_card
from demo.head import TrainableEagleHead, head_config, load_head, save_head
from demo.head_run import EagleSettings, HeadRun
from demo.train_head import draft_loss, parse_arguments, run


def depth_loss(
    output: torch.Tensor,
    output_matrix: torch.Tensor,
    target_logits: torch.Tensor,
    features: torch.Tensor,
    overlap_weight: float,
    feature_weight: float,
) -> torch.Tensor:
    """Loss of each of N outputs [N, H] of one draft step against the target's [N, V] and [N, H].

    `draft_loss`, and the distance of features, float32 [N].
    """
    distance = smooth_l1_loss(output.float(), features.float(), reduction="none").mean(-1)
    loss = draft_loss(output, output_matrix, target_logits, overlap_weight)
    return loss + feature_weight * distance


class EagleTrainer:
    """Loss of a head over windows of text; the target stays as it is."""

    def __init__(
        self, target: LlamaForCausalLM, head: TrainableEagleHead, settings: EagleSettings
    ) -> None:
        self._target = target.eval().requires_grad_(False)
        self._head = head
        self._settings = settings
        on_gpu = target.device.type == "cuda"
        self._depth_loss = torch.compile(depth_loss, dynamic=False) if on_gpu else depth_loss

    def __call__(self, windows: torch.Tensor) -> torch.Tensor:
        """Mean loss over [B, T + 1] ids."""
        settings, target = self._settings, self._target
        with torch.no_grad():
            features = target.model(input_ids=windows[:, :-1], use_cache=False).last_hidden_state
            embeddings = target.model.embed_tokens(windows[:, 1:]).to(features.dtype)
            # The token at i + 1: the last position has nothing to learn from.
            expected = features.roll(-1, dims=1).flatten(0, 1)
            matrix = target.lm_head.weight.to(features.dtype)
            logits = expected @ matrix.T
        place = torch.arange(features.shape[1], device=features.device)
        total, weight = torch.zeros((), device=features.device), 1.0
        outputs = self._head.rollout(embeddings, features, settings.draft_steps)
        for j, output in enumerate(outputs):
            losses = self._depth_loss(
                output.flatten(0, 1).to(features.dtype),
                matrix,
                logits,
                expected,
                settings.overlap_weight,
                settings.feature_weight,
            )
            counted = (place >= j) & (place < len(place) - 1)
            total = total + weight * losses.view(len(windows), -1)[:, counted].mean()
            weight *= settings.step_weight
        return total


def main() -> None:
    args, settings = parse_arguments("EAGLE head", EAGLE_FOLDER, EagleSettings)
    torch.manual_seed(settings.seed)
    head = load_head(args.start) if args.start else TrainableEagleHead(head_config())
    done = run(args, settings, head, lambda target: EagleTrainer(target, head, settings))
    save_head(head, args.output)
    start = f"the head in `{args.start}`" if args.start else "random weights"
    finished = HeadRun(settings, start, done.seconds, done.hardware, torch.__version__)
    write_card(args.output, args.model, done.corpus, finished)


if __name__ == "__main__":
    main()
