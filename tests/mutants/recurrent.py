"""Mutants of layers that keep states: of their kernels and their twins, of families and drafts.

Most are bugs that other servers have had.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

KERNELS = "tests/engine/kernels/recurrent"
RECURRENCE = f"{KERNELS}/test_recurrence.py"
REFUSED = f"{RECURRENCE}::test_refused_drafts_leave_no_trace"
LOGITS = "tests/engine/models/test_decoder.py::test_logits"
HYBRIDS = "tests/engine/models/families/test_hybrids.py"

CONVOLVED = f"{KERNELS}/test_convolution.py"
OWN_HEAD = "tests/engine/speculation/test_drafters.py::test_the_checkpoints_own_head"

RECURRENT = (
    Mutant(
        "chunks-lie-on-the-grid-of-a-packed-batch",
        "engine/kernels/recurrent/recurrence_chunked.py",
        "before = (begin % CHUNK).to(tl.int32)",
        "before = ((begin + start) % CHUNK).to(tl.int32)",
        (f"{RECURRENCE}::test_bits_do_not_depend_on_the_rows_beside",),
        interpreted=True,
        seen=("sglang#31833", "sglang#37836"),
    ),
    Mutant(
        "step-sizes-are-rounded-as-products-are",
        "engine/kernels/recurrent/gates.py",
        "elementwise(torch.sigmoid, b.float())",
        "elementwise(torch.sigmoid, b).float()",
        (f"{KERNELS}/test_gates.py::test_gates_are_float32_whatever_the_products_are",),
        seen=("sglang#35150",),
    ),
    Mutant(
        "accepted-drafts-are-counted-by-another-order-of-rows",
        "engine/kernels/recurrent/recurrence.py",
        "int(rows.replays[row])",
        "int(rows.replays[-1 - row])",
        (REFUSED,),
        seen=("vllm#53912",),
    ),
    Mutant(
        "refused-drafts-are-entered",
        "engine/kernels/recurrent/recurrence.py",
        "            if end <= ends[row]:\n",
        "            if end <= ends[row] + 1:\n",
        (REFUSED,),
    ),
    Mutant(
        "a-row-that-begins-reads-what-its-slot-holds",
        "engine/kernels/recurrent/recurrence.py",
        "if begin else torch.zeros_like(matrix[slot])",
        "",
        (f"{RECURRENCE}::test_whole_texts",),
    ),
    Mutant(
        "a-row-goes-on-in-the-snapshot-that-it-was-restored-from",
        "engine/kernels/recurrent/recurrence.py",
        "                _store(matrix, state, slot)\n",
        "                _store(matrix, state, source)\n",
        (f"{RECURRENCE}::test_snapshots_of_a_prompt",),
    ),
    Mutant(
        "drafts-replace-the-inputs-before-them",
        "engine/kernels/recurrent/convolution.py",
        "    return width + num_drafts\n",
        "    return width\n",
        (f"{KERNELS}/test_convolution.py::test_refused_drafts_leave_no_trace",),
    ),
    Mutant(
        "step-sizes-of-olmo-stay-below-1",
        "engine/models/families/hybrid/olmo_hybrid.py",
        "beta_scale=2.0 if",
        "beta_scale=1.0 if",
        (f"{HYBRIDS}::test_preempted",),
    ),
    Mutant(
        "kimis-gate-goes-through-silu",
        "engine/models/layers/recurrent/channel_delta.py",
        "self.eps, sigmoid=True)",
        "self.eps)",
        (f"{HYBRIDS}::test_preempted[kimi_linear]",),
    ),
    Mutant(
        "kimis-decays-are-those-of-the-first-channel",
        "engine/models/layers/recurrent/channel_delta.py",
        "*sizes.split(own), a, b)",
        "*sizes.split(own), a[..., :1].expand_as(a), b)",
        (f"{HYBRIDS}::test_preempted[kimi_linear]",),
    ),
    Mutant(
        "ungated-experts-are-not-squared",
        "engine/kernels/experts/gates.py",
        "F.relu(products).square()",
        "F.relu(products)",
        (f"{HYBRIDS}::test_preempted[nemotron_h_experts]",),
    ),
    Mutant(
        "a-latent-expert-is-added-before-it-is-widened",
        "engine/kernels/experts/layer.py",
        "self._latent.widen(compute(self._latent.compress(x), None))",
        "self._latent.widen(self._latent.compress(x))",
        (f"{HYBRIDS}::test_preempted[nemotron_h_latent]",),
    ),
    Mutant(
        "corrections-of-probabilities-are-added-to-logits",
        "engine/kernels/experts/routing.py",
        "(scores if rules.sigmoid else logits.softmax(dim=-1)) + correction",
        "scores + correction",
        (f"{LOGITS}[ernie-moe]",),
    ),
    Mutant(
        "the-stream-is-not-scaled-at-a-layers-end",
        "engine/models/layers/per_layer.py",
        "added * self.scalar, total.mul_(self.scalar)",
        "added * self.scalar, total",
        (f"{LOGITS}[gemma4-shared]",),
    ),
    Mutant(
        "keys-that-are-values-are-normed-as-keys",
        "engine/models/layers/shared_keys.py",
        "v = k if self.keys_are_values",
        "v = self.k_norm(k) if self.keys_are_values",
        (f"{LOGITS}[gemma4]",),
    ),
    Mutant(
        "a-head-reads-its-output-before-the-norm",
        "engine/speculation/mtp_head.py",
        "        return self._final_norm.add(*stream)[0]\n",
        "        return sum(each for each in stream if each is not None)\n",
        (OWN_HEAD,),
    ),
    Mutant(
        "pieces-attend-as-if-no-layer-read-anothers-keys",
        "engine/runner/graphs/piecewise_graphs.py",
        "in zip(pieces.layers, graphs, strict=True):",
        "in enumerate(graphs):",
        (
            "tests/engine/runner/graphs/test_piecewise_graphs.py"
            "::test_pieces_are_the_eager_forward[gemma4-shared]",
        ),
        interpreted=True,
    ),
    Mutant(
        "a-head-reads-the-hidden-state-before-the-embedding",
        "engine/speculation/mtp_head.py",
        "[embedded, self._hidden_norm(features)]",
        "[self._hidden_norm(features), embedded]",
        (OWN_HEAD,),
    ),
    Mutant(
        "a-snapshot-at-a-steps-last-token-is-not-made",
        "engine/kernels/recurrent/convolution.py",
        "< end <= ends[row]:",
        "< end < ends[row]:",
        (f"{CONVOLVED}::test_rows_continue_from_snapshots",),
        seen=("vllm#53505",),
    ),
    Mutant(
        "a-snapshot-within-a-step-has-the-inputs-at-the-steps-end",
        "engine/kernels/recurrent/convolution.py",
        "_enter(line[: len(line) - finish + end], end, ring[into])",
        "_enter(line, end, ring[into])",
        (f"{CONVOLVED}::test_rows_continue_from_snapshots",),
        seen=("vllm#53505",),
    ),
    Mutant(
        "decays-are-those-of-the-steps-first-tokens",
        "engine/models/layers/recurrent/gated_delta.py",
        "*sizes.split(own), a, b)",
        "*sizes.split(own), a[:1].expand_as(a).contiguous(), b)",
        (f"{HYBRIDS}::test_drafted[qwen3_5]",),
        seen=("vllm#51812",),
    ),
    Mutant(
        "a-step-with-no-draft-accepted-enters-the-last-place-of-the-ring",
        "engine/kernels/recurrent/recurrence.py",
        "range(begin - int(rows.replays[row]), begin)",
        "range(begin - max(int(rows.replays[row]), 1), begin)",
        (REFUSED,),
        seen=("vllm#51508",),
    ),
    Mutant(
        "a-row-with-no-draft-accepted-reads-slot-0",
        "engine/kernels/recurrent/recurrence.py",
        "int(rows.begins[row]), int(rows.sources[row])",
        "int(rows.begins[row]), int(rows.sources[row]) if rows.replays[row] else NULL_SLOT",
        (REFUSED,),
        seen=("vllm#40738",),
    ),
    Mutant(
        "chunks-begin-where-a-prompt-was-cut",
        "engine/kernels/recurrent/recurrence.py",
        "(position // CHUNK + 1) * CHUNK",
        "position + CHUNK",
        (f"{RECURRENCE}::test_snapshots_are_on_the_grid_of_positions",),
        seen=("vllm#55524",),
    ),
)
