"""A trainer that shares tensors on its GPU by handles, as a program: FOLDER HANDLES.

It pickles them as vLLM's trainers do, says so on its standard output, and keeps the memory until
its standard input ends.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.multiprocessing import reductions


def main() -> None:
    folder, handles = map(Path, sys.argv[1:])
    reduce_tensor: Any = reductions.reduce_tensor
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    tensors = load_file(folder / "model.safetensors", device="cuda")
    shared = [{uuid: reduce_tensor(tensor)} for tensor in tensors.values()]
    torch.cuda.synchronize()
    handles.write_bytes(pickle.dumps(shared))
    print("shared", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
