"""Train a block head (DFlash) for the demo model: the target and the library in, a folder out.

python -m demo.train_dflash --corpus stdlib.tar.xz --output FOLDER     # on one GPU
python -m demo.acceptance --corpus stdlib.tar.xz --head FOLDER         # how much is accepted
"""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from demo.block_head import TrainableBlockHead, block_config, load_block_head, save_block_head
from demo.head_run import BlockSettings
from demo.train_head import draft_loss, parse_arguments, run


class BlockTrainer:
    """Loss of a block head over windows of text; the target stays as it is."""

    def __init__(
        self, target: LlamaForCausalLM, head: TrainableBlockHead, settings: BlockSettings
    ) -> None:
        self._target = target.eval().requires_grad_(False)
        self._head = head
        self._settings = settings
        self._generator = torch.Generator(target.device).manual_seed(settings.seed)
        on_gpu = target.device.type == "cuda"
        self._draft_loss = torch.compile(draft_loss, dynamic=False) if on_gpu else draft_loss

    def __call__(self, windows: torch.Tensor) -> torch.Tensor:
        """Mean loss over blocks from random places of [B, T + 1] ids."""
        settings, target, size = self._settings, self._target, self._head.block_size
        anchors = self._anchors(windows)
        with torch.no_grad():
            made = target.model(
                input_ids=windows[:, :-1], use_cache=False, output_hidden_states=True
            )
            features = made.last_hidden_state
            embeddings = target.model.embed_tokens(windows.gather(1, anchors)).to(features.dtype)
            # What says which token stands at a place is the hidden state one before it.
            places = anchors[:, :, None] + torch.arange(size - 1, device=anchors.device)
            rows = torch.arange(len(windows), device=anchors.device)[:, None, None]
            matrix = target.lm_head.weight.to(features.dtype)
            logits = features[rows, places].flatten(0, 2) @ matrix.T
        output = self._head(made.hidden_states, embeddings, anchors)[:, :, 1:]
        losses = self._draft_loss(
            output.flatten(0, 2).to(features.dtype), matrix, logits, settings.overlap_weight
        )
        weights = settings.step_weight ** torch.arange(size - 1, device=anchors.device)
        return (losses.view(-1, size - 1).mean(0) * weights).sum()

    def _anchors(self, windows: torch.Tensor) -> torch.Tensor:
        """Random places int64 [B, anchors] behind which the target has seen a whole block."""
        last = windows.shape[1] - self._head.block_size
        shape = (len(windows), min(self._settings.anchors, last - 1))
        chances = torch.rand(
            len(windows), last - 1, generator=self._generator, device=windows.device
        )
        return 1 + chances.topk(shape[1], dim=1).indices


def main() -> None:
    args, settings = parse_arguments("block head", Path("dflash"), BlockSettings)
    torch.manual_seed(settings.seed)
    head = load_block_head(args.start) if args.start else TrainableBlockHead(block_config())
    done = run(args, settings, head, lambda target: BlockTrainer(target, head, settings))
    save_block_head(head, args.output)
    print(f"{settings.steps} steps in {done.seconds:.0f} s on {done.hardware}")


if __name__ == "__main__":
    main()
