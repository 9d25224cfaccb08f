"""Host arrays reach the device row by row at a flush, or whole. Nothing is random."""

from __future__ import annotations

import numpy as np
import torch

from sampling.mirror import MirroredRows, to_device

CPU = torch.device("cpu")


def test_a_mirror_publishes_touched_rows_only_and_once() -> None:
    mirror = MirroredRows((4, 2), np.int32, CPU, fill=-1)
    assert (mirror.tensor == -1).all()
    mirror.np[:] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    mirror.touch(1)
    mirror.touch(3)
    mirror.touch(1)
    mirror.flush()
    assert mirror.tensor.tolist() == [[-1, -1], [3, 4], [-1, -1], [7, 8]]
    mirror.np[1] = 9  # the device has a copy of its own
    mirror.flush()
    assert mirror.tensor[1].tolist() == [3, 4]
    address = mirror.tensor.data_ptr()
    mirror.touch(1)
    mirror.flush()
    assert mirror.tensor[1].tolist() == [9, 9]
    assert mirror.tensor.data_ptr() == address  # captured graphs read it there


def test_a_copy_on_the_device_leaves_the_host_array_free_for_reuse() -> None:
    array = np.array([[1, 2], [3, 4]], dtype=np.int32)
    copy = to_device(array, CPU)
    array[:] = 0
    assert copy.dtype == torch.int32
    assert copy.tolist() == [[1, 2], [3, 4]]
