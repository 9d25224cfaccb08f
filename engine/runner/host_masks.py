"""The masks of a step on their way from the threads that fill them to the sampler's rows."""

from __future__ import annotations

import torch

from engine.arrays import Int32Array
from engine.plan import StepMasks
from sampling.device.mirror import to_device
from sampling.rows import SamplingRows


class HostMasks:
    """Owns the host's side of `SamplingRows.grammar_masks`.

    On CUDA a stream of their own copies masks, beside the forward whose draw waits for them.

    Attributes:
        buffer: int32 [max_masks, ceil(vocab_size / 32)], as `grammar_masks`; pinned on CUDA. It may
            be written anew once the step that its masks were published for has been read back.
    """

    def __init__(self, rows: SamplingRows) -> None:
        self._rows = rows
        on_cuda = rows.device.type == "cuda"
        shape = rows.grammar_masks.shape
        self.buffer: Int32Array = torch.zeros(shape, dtype=torch.int32, pin_memory=on_cuda).numpy()
        self._stream: torch.cuda.Stream | None = None
        if on_cuda:
            self._stream = torch.cuda.Stream(rows.device)  # type: ignore[no-untyped-call]
            self._free = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def publish(self, masks: StepMasks) -> torch.Tensor:
        """Copy the masks in use to the device; returns the slots of the step's N logit rows.

        Neither copy is waited for. Slots are int32 [N] on the device.
        """
        if masks.count and self._stream is None:
            self._rows.put_masks(self.buffer[: masks.count])
        elif masks.count and self._stream is not None:
            self._stream.wait_event(self._free)
            with torch.cuda.stream(self._stream):
                self._rows.put_masks(self.buffer[: masks.count])
            torch.cuda.current_stream(self._rows.device).wait_stream(self._stream)
        return to_device(masks.slots, self._rows.device)

    def release(self) -> None:
        """Note that the draw was issued which reads what was published: the next may follow it."""
        if self._stream is not None:
            self._free.record()
