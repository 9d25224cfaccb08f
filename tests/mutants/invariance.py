"""Mutants of `--batch-invariant`: sums whose order follows from what else a step computes."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KERNELS = "tests/engine/kernels/invariant"
ATTENTION = "engine/kernels/invariant/attention.py"
SAME_BITS = f"{KERNELS}/test_attention.py::test_every_way_has_the_same_bits"

INVARIANCE = (
    Mutant(
        "keys-are-divided-into-shares-only-where-several-programs-take-a-row",
        ATTENTION,
        "        if ends_share(at + shape.block):\n",
        "        if ends_share(at + shape.block) and at < 0:\n",
        (SAME_BITS,),
        interpreted=True,
    ),
    Mutant(
        "a-lone-query-takes-keys-in-blocks-of-another-size",
        ATTENTION,
        "        block=block_of(spec.head_dim, q.dtype),\n",
        "        block=16 if query_len == 1 else block_of(spec.head_dim, q.dtype),\n",
        (SAME_BITS,),
        interpreted=True,
    ),
    Mutant(
        "shares-are-merged-last-first",
        ATTENTION,
        "left(scratch, cell + number, queries, count, shape)",
        "left(scratch, cell + end_share - first_share - 1 - number, queries, count, shape)",
        (SAME_BITS,),
        interpreted=True,
    ),
    Mutant(
        "a-cpu-multiplies-as-many-rows-as-there-are",
        "engine/kernels/invariant/product.py",
        "    padded = F.pad(x, (0, 0, 0, -num_rows % CPU_ROWS))\n",
        "    return compute(x)\n    padded = x\n",
        (f"{KERNELS}/test_product.py::test_rows_on_a_cpu_do_not_change_one_another",),
    ),
)
