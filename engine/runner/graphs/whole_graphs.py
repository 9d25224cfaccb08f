"""Captures forwards of few tokens as one CUDA graph each, attention included.

In pieces, the host launches a graph and the attention's kernel for each layer: 2 ms for 28 layers,
in which a GPU computes some hundred tokens of a small model and more. Where all rows of a step
prefill on our own kernel, that kernel can be in the graph: what it does depends on the step by its
tiles and block tables alone, which lie at fixed addresses (`FixedTiles`). It launches the same
kernels for as many tokens as the pieces do, so its results have the same bits, unless the keys of a
long row are divided among programs: into how many, a graph has fixed for any step of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.attention.cuda import CudaAttention
from engine.attention.fixed_tiles import FixedTiles
from engine.runner.graphs.capturing import capturing

MAX_TOKENS = 256
"""Largest number of tokens that are captured so: with more, a GPU computes a layer's piece while
the host launches the next."""


class WholeGraphs:
    """Holds the graphs of whole forwards by their numbers of tokens.

    Args:
        queries, attended: as of `StepBuffers`.
    """

    def __init__(
        self,
        attention: CudaAttention,
        queries: Sequence[torch.Tensor],
        attended: Sequence[torch.Tensor],
    ) -> None:
        self._attention = attention
        self._queries, self._attended = queries, attended
        self._tiles = FixedTiles(attention.tiled.cuts, MAX_TOKENS, queries[0].device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def capture(
        self, size: int, run: Callable[[int, Callable[[int], None]], None], pool: Any
    ) -> None:
        """Capture the forward of `size` tokens into a memory pool, if they are few.

        Args:
            run: runs the forward of so many tokens, and calls a function with each layer's place
                where `queries` are there and `attended` is to be made.
        """
        if size > MAX_TOKENS:
            return
        step, tiled = self._tiles.of_size(size), self._attention.tiled

        def attend(layer: int) -> None:
            queries, attended = self._queries[layer][:size], self._attended[layer][:size]
            tiled.attend(layer, queries, attended, step)

        run(size, attend)  # loads kernels
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, pool):
            run(size, attend)
        self._graphs[size] = graph

    def replay(self, size: int) -> bool:
        """Replay the forward of `size` tokens for the step that the attention has begun.

        Returns:
            False, where nothing ran: the graph does not hold what the step's rows attend by.
        """
        graph, step = self._graphs.get(size), self._attention.tiled_step
        if graph is None or step is None or not self._tiles.put(step, size):
            return False
        graph.replay()
        return True
