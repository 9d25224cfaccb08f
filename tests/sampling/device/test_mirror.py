"""Host arrays reach the device whole, together, or row by row. Seeded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sampling.device.mirror import (
    ALIGNMENT,
    Layout,
    MirroredRows,
    Writes,
    publish,
    span_writes,
    to_device,
    to_device_together,
)

CPU = torch.device("cpu")


def test_a_mirror_publishes_touched_rows_only_and_once() -> None:
    mirror = MirroredRows((4, 2), np.int32, CPU, fill=-1)
    assert (mirror.tensor == -1).all()
    mirror.np[:] = [[1, 2], [3, 4], [5, 6], [7, 8]]
    mirror.touch(1)
    mirror.touch(3)
    mirror.touch(1)
    publish(mirror.take())
    assert mirror.tensor.tolist() == [[-1, -1], [3, 4], [-1, -1], [7, 8]]
    mirror.np[1] = 9  # the device has a copy of its own
    publish(mirror.take())
    assert mirror.tensor[1].tolist() == [3, 4]
    address = mirror.tensor.data_ptr()
    mirror.touch(1)
    publish(mirror.take())
    assert mirror.tensor[1].tolist() == [9, 9]
    assert mirror.tensor.data_ptr() == address  # captured graphs read it there


def test_a_copy_on_the_device_leaves_the_host_array_free_for_reuse() -> None:
    array = np.array([[1, 2], [3, 4]], dtype=np.int32)
    copy = to_device(array, CPU)
    array[:] = 0
    assert copy.dtype == torch.int32
    assert copy.tolist() == [[1, 2], [3, 4]]


def test_writes_are_published_in_order() -> None:
    table, lengths = torch.ones((4, 2), dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    first, second = np.array([1, 3]), np.array([3])
    publish(
        [
            Writes(table, first, 0),
            Writes(table, second, np.array([[7, 8]], dtype=np.int32)),
            Writes(lengths, first, np.array([5, 6])),
        ]
    )
    assert table.tolist() == [[1, 1], [0, 0], [1, 1], [7, 8]]
    assert lengths.tolist() == [0, 5, 0, 6]
    publish([])


def test_arrays_side_by_side_keep_dtypes_shapes_and_alignment() -> None:
    rng = np.random.default_rng(0)
    dtypes, shapes = (np.int64, np.int32, np.float64, np.uint8), ((3,), (0,), (2, 5), (1,), (4, 0))
    arrays = [
        rng.integers(0, 200, shape).astype(dtype) for shape in shapes for dtype in (*dtypes, int)
    ]
    arrays.append(arrays[10][:, 1:4])  # of rows that do not follow one another
    layout = Layout(arrays)
    host = np.full(layout.num_bytes + 1, 255, dtype=np.uint8)
    layout.write(host[:-1])
    views = layout.views(torch.from_numpy(host[:-1]))
    assert host[-1] == 255
    for array, view in zip(arrays, views, strict=True):
        assert view.numpy().dtype == array.dtype
        assert np.array_equal(view.numpy(), array)
        assert (view.data_ptr() - host.ctypes.data) % ALIGNMENT == 0


@pytest.mark.gpu
def test_copies_to_a_gpu_leave_the_arrays_free_for_reuse() -> None:
    arrays: list[npt.NDArray[Any]] = [np.arange(100_000), np.ones((2, 3), dtype=np.float32)]
    sent = to_device_together(arrays, torch.device("cuda"))
    wanted = [array.copy() for array in arrays]
    for array in arrays:
        array[:] = 0
    for tensor, array in zip(sent, wanted, strict=True):
        assert np.array_equal(tensor.cpu().numpy(), array)


def test_spans_are_written_into_rows_of_a_table() -> None:
    target = torch.zeros((3, 5), dtype=torch.int32)
    writes = span_writes(target, [(1, 2, 3), (2, 0, 1)], np.array([7, 8, 9, 1]))
    assert not target.any()
    publish([writes])
    assert target.tolist() == [[0] * 5, [0, 0, 7, 8, 9], [1, 0, 0, 0, 0]]
