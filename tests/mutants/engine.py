"""Mutants of the engine's loop, its contracts, scoring and the runner."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = (
    Mutant(
        "what-is-derived-from-a-weight-keeps-its-old-numbers",
        "engine/contracts/named_weights.py",
        "                follow()",
        "                pass",
        (
            "tests/engine/models/families/test_named_weights.py::test_every_family_is_rewritten[gemma3]",
        ),
    ),
    Mutant(
        "a-written-projection-has-its-outputs-as-they-are-stored",
        "engine/models/formats/projections.py",
        "return part if order is None else part.channels(order)",
        "return part",
        (
            "tests/engine/models/families/test_named_weights.py::test_every_family_is_rewritten[cohere]",
        ),
    ),
    Mutant(
        "copies-laid-out-for-products-keep-the-old-weight",
        "engine/models/formats/projections.py",
        "            product.refresh(whole)",
        "            pass",
        ("tests/engine/models/formats/test_held_modules.py::test_every_format_is_rewritten[awq]",),
    ),
    Mutant(
        "a-stored-zero-point-of-15-is-16",
        "engine/models/formats/unpack.py",
        "zeros = (zeros + scheme.zero_offset) & 15",
        "zeros = zeros + scheme.zero_offset",
        (
            "tests/engine/models/formats/test_int4_checkpoints.py::test_zero_points_at_both_ends_of_the_code",
        ),
    ),
    Mutant(
        "a-symmetric-part-of-a-joined-product-loses-the-others-zero-points",
        "engine/models/formats/int4.py",
        "any(part.groups.zeros is not None for part in int4)",
        "all(part.groups.zeros is not None for part in int4)",
        (
            "tests/engine/models/formats/test_int4_parts.py::test_joined_4_bit_parts_keep_their_zero_points",
        ),
    ),
    Mutant(
        "a-symmetric-part-of-a-joined-product-has-the-middle-beside-the-middle",
        "engine/models/formats/int4.py",
        "torch.full(groups.scales.shape, MIDDLE,",
        "torch.full(groups.scales.shape, MIDDLE - 1,",
        (
            "tests/engine/models/formats/test_int4_parts.py::test_joined_4_bit_parts_keep_their_zero_points",
        ),
    ),
    Mutant(
        "an-audit-takes-only-one-side-s-errors-into-account",
        "engine/audit/redraw.py",
        "gain = math.exp(2 * slack)",
        "gain = math.exp(slack)",
        (
            "tests/engine/audit/test_redraw.py::test_what_logits_that_are_off_draw_is_explained_by_no_more_than_they_are_off",
        ),
    ),
    Mutant(
        "an-audit-takes-the-mass-above-a-token-for-certain",
        "engine/audit/distribution.py",
        'scaled + 2 * slack, "right"',
        'scaled, "right"',
        ("tests/engine/audit/test_redraw.py::test_small_errors_may_put_a_token_above_the_first",),
    ),
    Mutant(
        "drafts-of-a-row-s-earlier-choice-are-verified",
        "engine/batch.py",
        "        if plan.undrafted:\n",
        "        if plan.undrafted and plan.released:\n",
        ("tests/engine/test_batch.py::test_drafts_of_a_rows_earlier_choice_are_not_verified",),
    ),
    Mutant(
        "blocks-of-a-vacated-row-are-kept-on-the-host",
        "engine/batch.py",
        "        self.block_tables_np[rows] = NULL_BLOCK\n",
        "",
        ("tests/engine/test_batch.py::test_a_vacated_row_writes_to_nobodys_blocks",),
    ),
    Mutant(
        "a-token-counts-as-computed-before-the-row-has-drawn",
        "engine/runner/host_gather.py",
        "ends_np.astype(np.int64) - plan.samples, ",
        "ends_np.astype(np.int64), ",
        (
            "tests/engine/runner/test_host_gather.py"
            "::test_a_row_that_draws_ends_before_its_last_token_until_then",
        ),
    ),
    Mutant(
        "writes-are-published-out-of-order",
        "sampling/device/mirror.py",
        "    for target, _, values in writes:\n",
        "    for target, _, values in sorted(writes, key=lambda each: isinstance(each[2], int)):\n",
        ("tests/sampling/device/test_mirror.py::test_writes_are_published_in_order",),
    ),
    Mutant(
        "blocks-are-shared-across-cache-salts",
        "engine/memory/blocks.py",
        "        root_hash(salt, adapter),",
        '        root_hash("", adapter),',
        ("tests/engine/memory/test_blocks.py::test_hash_chain_depends_on_everything_before",),
    ),
    Mutant(
        "a-salt-names-blocks-of-an-update-before-the-first-one",
        "engine/memory/blocks.py",
        '    return f"{num_updates}/{salt}"\n',
        '    return f"{num_updates}/{salt}" if num_updates else salt\n',
        (
            "tests/engine/memory/test_blocks.py"
            "::test_no_salt_is_that_of_another_after_other_updates",
            "tests/engine/control/test_command_queue.py"
            "::test_a_salt_does_not_name_prefixes_of_other_weights",
        ),
    ),
    Mutant(
        "blocks-are-shared-across-versions-of-an-adapter",
        "engine/planning/prefixes.py",
        'b"" if choice.adapter is None else choice.adapter.digest',
        'b"" if choice.adapter is None else choice.adapter.name.encode()',
        ("tests/engine/runner/test_adapters.py::test_a_prefix_of_a_replaced_adapter_is_not_found",),
    ),
    Mutant(
        "prompt-logprobs-of-an-earlier-life-are-kept",
        "engine/planning/prompt_parts.py",
        "if not live[span.row_idx] or choice.prompt_parts is None",
        "if choice.prompt_parts is None",
        (
            "tests/engine/test_engine.py"
            "::test_prompt_logprobs_begin_again_when_a_prompt_is_preempted",
        ),
    ),
    Mutant(
        "choices-hang-when-the-first-one-fails",
        "engine/planning/unfinished.py",
        "        choice.ended = True\n        self._enqueue_children(choice)\n",
        "        choice.ended = True\n",
        (
            "tests/engine/test_engine.py"
            "::test_when_a_first_choice_ends_early_the_others_of_its_request_go_on",
        ),
    ),
    Mutant(
        "unseeded-requests-share-a-seed",
        "engine/planning/seeds.py",
        "return request, secrets.randbits(64) - 2**63",
        "return request, 0",
        ("tests/engine/test_engine.py::test_unseeded_requests_have_seeds_of_their_own",),
    ),
    Mutant(
        "blocks-of-bad-rows-are-shared",
        "engine/engine.py",
        "self._parts.prefixes.register(settled.rows[~failed])",
        "self._parts.prefixes.register(settled.rows)",
        (
            "tests/engine/test_engine.py"
            "::test_bad_logits_end_one_choice_and_keep_its_blocks_from_others",
        ),
    ),
    Mutant(
        "a-released-block-stays-unknown-to-the-drafter",
        "engine/memory/blocks.py",
        "        self._undrafted.discard(block)\n",
        "",
        ("tests/engine/memory/test_blocks.py::test_a_block_granted_again_is_as_new",),
    ),
    Mutant(
        "a-row-keeps-the-stop-ids-of-its-last-choice",
        "engine/rows.py",
        "        self.stop_ids[row] = NO_TOKEN\n",
        "",
        ("tests/engine/test_rows.py::test_a_claimed_row_starts_from_its_choice_alone",),
    ),
    Mutant(
        "the-last-prompt-token-s-successor-is-scored",
        "engine/plan.py",
        "last = min(int(plan.num_query[row_idx]), choice.prompt_len - 1 - start)",
        "last = int(plan.num_query[row_idx])",
        ("tests/engine/test_plan.py::test_spans_of_a_chunk",),
    ),
    Mutant(
        "a-request-s-failure-hides-its-last-entries",
        "engine/submission.py",
        "if not self._entries and self._failure is not None:",
        "if self._failure is not None:",
        ("tests/engine/test_submission.py::test_a_failure_comes_after_the_entries_that_are_there",),
    ),
    Mutant(
        "a-message-of-scoring-alone-is-not-sent",
        "engine/client.py",
        "message.submit or message.score or message.abort",
        "message.submit or message.abort",
        ("tests/engine/test_client.py::test_one_thing_alone_is_sent_too",),
    ),
    Mutant(
        "an-idle-loop-counts-as-hung",
        "engine/loop.py",
        "for frontend, _ in outputs})\n            self._busy_since = math.inf\n",
        "for frontend, _ in outputs})\n",
        ("tests/engine/test_loop.py::test_a_loop_that_waits_for_a_message_is_not_hung",),
    ),
    Mutant(
        "beginnings-of-prefixes-are-granted-before-ends",
        "engine/memory/blocks.py",
        "for block in reversed(blocks):",
        "for block in blocks:",
        (
            "tests/engine/memory/test_blocks.py"
            "::test_the_least_recently_released_goes_first_and_ends_before_beginnings",
        ),
    ),
    Mutant(
        "aborts-go-before-the-requests-they-end",
        "engine/loop.py",
        """            for request in message.submit:
                self._engine.submit(frontend, request)
            for scoring in message.score:
                self._engine.score(frontend, scoring)
            for handle, choice in message.abort:
                self._engine.abort(frontend, handle, choice)
""",
        """            for handle, choice in message.abort:
                self._engine.abort(frontend, handle, choice)
            for request in message.submit:
                self._engine.submit(frontend, request)
            for scoring in message.score:
                self._engine.score(frontend, scoring)
""",
        (
            "tests/engine/test_loop.py"
            "::test_messages_are_taken_in_order_and_what_is_none_is_passed_over",
        ),
    ),
    Mutant(
        "silence-hides-why-the-engine-ended",
        "engine/parent.py",
        """        if self.ended.done():
            return self.ended.result()
        silence""",
        "        silence",
        ("tests/engine/test_client.py::test_silence_does_not_hide_why_the_process_ended",),
    ),
)

SCORING = (
    Mutant(
        "id-lists-begin-anew-with-every-step",
        "engine/scoring/progress.py",
        "lists[np.arange(first, first + count) % len(lists)]",
        "lists[np.arange(count) % len(lists)]",
        ("tests/engine/scoring/test_progress.py::test_whole_items_follow_the_shared_blocks",),
    ),
    Mutant(
        "two-scored-rows-of-a-step-write-one-slot",
        "engine/scoring/step.py",
        "self._add_items(progress, [], [])  # what",
        "self._add_items(progress, progress.spare, [])  # what",
        (
            "tests/engine/scoring/test_queue.py"
            "::test_items_behind_a_split_one_do_not_write_into_its_blocks",
        ),
    ),
    Mutant(
        "what-waits-for-blocks-waits-for-the-step-in-flight-too",
        "engine/scoring/queue.py",
        "if step is None or step.handle.is_there or self.num_waiting:",
        "if step is None or step.handle.is_there:",
        (
            "tests/engine/scoring/test_queue.py"
            "::test_what_comes_while_a_lone_step_is_computed_is_launched_behind_it",
        ),
    ),
    Mutant(
        "scoring-requests-do-not-take-turns",
        "engine/scoring/queue.py",
        "                progress.last_turn = self._turn\n",
        "",
        ("tests/engine/scoring/test_step.py::test_requests_take_turns",),
    ),
    Mutant(
        "blocks-of-an-aborted-request-become-known",
        "engine/scoring/reading.py",
        "return bool(self.count) and not self.progress.ended",
        "return bool(self.count)",
        (
            "tests/engine/scoring/test_step.py"
            "::test_nothing_is_entered_for_a_request_that_ended_while_its_step_ran",
        ),
    ),
    Mutant(
        "positions-read-twice-in-a-split-item",
        "engine/scoring/progress.py",
        "max(length - int(layout.num_read[row]), start)",
        "(length - int(layout.num_read[row]))",
        (
            "tests/engine/scoring/test_progress.py"
            "::test_a_split_item_is_computed_in_the_spare_blocks_and_read_where_its_end_lies",
        ),
    ),
    Mutant(
        "branches-of-an-item-begin-after-another-s-stem",
        "engine/scoring/progress.py",
        "np.where(columns < stems[:, None], begins[stem_rows, None] + columns, own)",
        "np.where(columns < stems[:, None], begins[0] + columns, own)",
        ("tests/engine/scoring/test_queue.py::test_random_traffic_equals_whole_sequences",),
    ),
    Mutant(
        "branches-of-one-step-write-one-block",
        "engine/scoring/step.py",
        "progress.own_spare if is_stem else self._grant_row(progress)",
        "progress.own_spare",
        (
            "tests/engine/scoring/test_queue.py"
            "::test_branches_of_an_item_longer_than_a_step_follow_in_later_steps",
        ),
    ),
    Mutant(
        "positions-read-in-the-order-of-the-step",
        "engine/scoring/packing.py",
        "ends if order is None else ends[np.argsort(order)]",
        "ends",
        (
            "tests/engine/scoring/test_packing.py"
            "::test_rows_that_share_blocks_come_last_and_positions_are_read_in_order",
        ),
    ),
)

RUNNER = (
    Mutant(
        "a-rank-stays-in-a-group-that-another-left",
        "engine/weights/incoming.py",
        "agreed(self._receive_rest, self._exchange)",
        "self._receive_rest()",
        ("tests/engine/weights/test_incoming.py::test_ranks_leave_a_group_together",),
    ),
    Mutant(
        "a-float8-down-product-is-not-summed-over-ranks",
        "engine/models/layers/mlp.py",
        "reader.sum_of(down.linear, self._columns(reader.ranks))",
        "down.linear",
        (
            "tests/engine/models/families/test_shards_quantized.py"
            "::test_weights_rounded_at_load_err_as_on_one_rank",
        ),
    ),
    Mutant(
        "each-rank-adds-the-bias-of-a-sum",
        "engine/models/formats/projections.py",
        "is_of_sum and self._rank > 0:",
        "is_of_sum and self._rank < 0:",
        ("tests/engine/models/families/test_shards.py::test_parts_make_up_the_model",),
    ),
    Mutant(
        "projections-in-one-tensor-are-divided-as-one",
        "engine/models/layers/mlp.py",
        "columns = (self._columns(ranks),) * (2 if is_packed else 1)",
        "columns = ((self._columns(ranks).times(2) if is_packed else self._columns(ranks)),)",
        ("tests/engine/models/families/test_shards.py::test_parts_make_up_the_model",),
    ),
    Mutant(
        "ranks-with-other-columns-capture-other-steps",
        "engine/models/decoder.py",
        "return int(exchange.all_gather(torch.tensor([count])).max())",
        "return count",
        (
            "tests/engine/models/families/test_shards_quantized.py"
            "::test_ranks_with_other_columns_count_the_same_weights",
        ),
    ),
    Mutant(
        "a-split-sum-is-not-ready-for-the-next",
        "engine/kernels/fp8_linear.py",
        "        tl.store(counter, 0)\n",
        "",
        ("tests/engine/kernels/test_fp8_linear.py::test_kernel",),
        interpreted=True,
    ),
    Mutant(
        "a-prompt-s-position-does-not-move-across-chunks",
        "engine/runner/prompt_logprobs.py",
        "position = computed + tokens.start - start + 1",
        "position = computed + span.first + 1",
        ("tests/engine/runner/test_prompt_logprobs.py::test_values_equal_transformers",),
    ),
    Mutant(
        "a-scored-position-does-not-move-across-chunks",
        "engine/runner/scoring.py",
        "id_lists[chunk], shard)",
        "id_lists[: chunk.stop - chunk.start], shard)",
        ("tests/engine/runner/test_scoring.py::test_values_of_several_chunks_of_the_lm_head",),
    ),
    Mutant(
        "a-stopped-rank-outlives-its-engine",
        "engine/parallel/processes.py",
        "        _RUNNING.update(self._processes)\n",
        "",
        (
            "tests/engine/test_process.py"
            "::test_an_engine_ends_with_the_name_of_a_rank_that_is_stopped_while_it_starts",
        ),
    ),
    Mutant(
        "every-page-begins-where-a-block-of-keys-does",
        "engine/kernels/decode/softmax.py",
        "within = n if shape.block % shape.page else i",
        "within = i",
        ("tests/engine/kernels/decode/test_attention.py::test_pages_that_do_not_divide_a_block",),
        interpreted=True,
    ),
    Mutant(
        "keys-loaded-ahead-are-seen-twice",
        "engine/kernels/decode/softmax.py",
        "            start += shape.block\n",
        "",
        ("tests/engine/kernels/decode/test_product.py::test_kernel_equals_the_three_steps",),
        interpreted=True,
    ),
    Mutant(
        "a-graph-packs-in-another-order",
        "engine/runner/host_copy.py",
        "for name in self.fields]",
        "for name in tensors]",
        ("tests/engine/runner/test_host_copy.py::test_what_is_packed_anew_is_what_is_copied",),
    ),
    Mutant(
        "odd-queries-meet-even-keys",
        "engine/kernels/decode/softmax.py",
        "tl.dot(odd_queries, second, ",
        "tl.dot(odd_queries, first, ",
        (
            "tests/engine/kernels/decode/test_attention.py"
            "::test_fp8_reaches_half_precision_in_pairs",
        ),
        interpreted=True,
    ),
    Mutant(
        "a-window-begins-one-key-late",
        "engine/kernels/decode/split_keys.py",
        "seq_len - shape.query_len + 1 - rules.window, 0)",
        "seq_len - shape.query_len + 2 - rules.window, 0)",
        (
            "tests/engine/kernels/decode/test_attention.py"
            "::test_windows_that_begin_around_the_edge_of_a_block",
        ),
        interpreted=True,
    ),
    Mutant(
        "drafts-without-room-count-as-verified",
        "engine/runner/gather.py",
        "    ends = torch.minimum(drafts.num_drafts, drafts.room)\n",
        "    ends = drafts.num_drafts\n",
        (
            "tests/engine/runner/test_speculation.py"
            "::test_drafts_without_room_do_not_count_as_verified",
        ),
    ),
    Mutant(
        "a-captured-step-keeps-one-logprob-a-row",
        "engine/runner/host_copy.py",
        "whole[: shape[0] * num_rows // packed.num_rows]",
        "whole[:num_rows]",
        (
            "tests/engine/runner/test_host_copy.py"
            "::test_of_packed_tensors_the_first_rows_are_copied",
        ),
    ),
    Mutant(
        "blocks-of-an-earlier-owner-are-not-cleared",
        "engine/attention/plain.py",
        "        self._clear(slots, blocks)\n",
        "",
        (
            "tests/engine/attention/test_plain.py"
            "::test_what_earlier_owners_of_a_block_left_does_not_matter",
        ),
    ),
    Mutant(
        "tokens-take-experts-of-every-group",
        "engine/kernels/experts/routing.py",
        "free = groups.masked_fill(is_left[..., None], -torch.inf).flatten(1)",
        "free = groups.flatten(1)",
        ("tests/engine/models/test_decoder.py::test_logits",),
    ),
    Mutant(
        "corrections-of-experts-weigh-them-too",
        "engine/kernels/experts/routing.py",
        "shares = scores.gather(1, ids)",
        "shares = ordered",
        ("tests/engine/kernels/experts/test_routing.py::test_sigmoid_scores",),
    ),
    Mutant(
        "packed-words-keep-the-strides-of-their-numbers",
        "engine/kernels/quantized/int4.py",
        "words = torch.zeros(q[:, :, 0].shape, dtype=torch.int32, device=q.device)",
        "words = torch.zeros_like(q[:, :, 0])",
        ("tests/engine/kernels/quantized/test_int4_linear.py::test_packed_tensors_are_contiguous",),
    ),
    Mutant(
        "a-block-sees-no-mask-after-its-own-place",
        "engine/attention/groups.py",
        "    if sight.is_causal:\n",
        "    if True:\n",
        ("tests/engine/speculation/test_block.py::test_dflash[plain-0.0-cpu]",),
    ),
    Mutant(
        "a-block-goes-on-past-the-limit-of-its-row",
        "engine/speculation/block.py",
        "ends = torch.minimum(first + width, step.limits)",
        "ends = first + width",
        ("tests/engine/speculation/test_block.py::test_dflash[plain-0.7-cpu]",),
    ),
    Mutant(
        "a-convolution-reaches-into-the-block-of-the-row-before",
        "engine/speculation/block_head.py",
        ".masked_fill((places < tap)[:, :, None], 0.0)",
        "",
        ("tests/engine/speculation/test_block.py::test_dflash2[False-0.0-cpu]",),
    ),
    Mutant(
        "the-newest-token-is-drafted-again",
        "engine/speculation/block.py",
        "own = (columns[: step.num_drafts] + (not loaded.anchored) + cut)",
        "own = (columns[: step.num_drafts] + cut)",
        ("tests/engine/speculation/test_block.py::test_dflash[plain-0.0-cpu]",),
    ),
)
