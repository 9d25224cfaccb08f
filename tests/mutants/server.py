"""Mutants of the server."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SERVER = (
    Mutant(
        "a-check-that-could-not-begin-is-remembered",
        "server/structured/checker.py",
        "        except BaseException:\n            del self._cache[key]\n            raise",
        "        except BaseException:\n            raise",
        (
            "tests/server/structured/test_checker.py::test_a_check_that_could_not_begin_is_not_remembered",
        ),
    ),
    Mutant(
        "a-start-that-takes-too-long-is-taken-for-a-call-that-does",
        "server/work/processes.py",
        "except (OSError, EOFError) as error:  # a start that takes too long among them",
        "except (ConnectionError, EOFError) as error:",
        (
            "tests/server/work/test_processes.py::test_a_start_that_fails_is_tried_again_and_holds_no_place",
        ),
    ),
    Mutant(
        "a-call-whose-process-did-not-start-holds-its-place",
        "server/work/processes.py",
        "finally:\n            self._num_waiting -= 1",
        "finally:\n            pass",
        (
            "tests/server/work/test_processes.py::test_a_start_that_fails_is_tried_again_and_holds_no_place",
        ),
    ),
    Mutant(
        "each-member-of-a-gzip-body-has-the-whole-limit",
        "server/http/content.py",
        "if len(plain) > limit:",
        "if len(part) > limit:",
        ("tests/server/http/test_body.py::TestCompressed::test_members_count_together",),
    ),
    Mutant(
        "a-revision-is-asked-of-another-tokenizer",
        "server/command/configure.py",
        "revision=settings.revision if own else None",
        "revision=settings.revision",
        (
            "tests/server/command/test_settings.py::test_a_revision_is_the_model_s_and_of_no_other_tokenizer",
        ),
    ),
    Mutant(
        "an-audit-passes-over-top-lists",
        "server/audit/reported.py",
        'shown.get("top_logprobs") or none',
        "none",
        (
            "tests/server/audit/test_reported.py"
            "::test_every_form_has_the_drawn_tokens_and_the_top_ones",
        ),
    ),
    Mutant(
        "an-audit-numbers-choices-over-all-prompts",
        "server/audit/records.py",
        "choice=index % n",
        "choice=index",
        ("tests/server/audit/test_records.py::test_choices_are_numbered_within_their_prompt",),
    ),
    Mutant(
        "a-broken-run-of-bytes-spoils-later-ones",
        "server/text/detokenize.py",
        'self._run, self._spoilt = b"", False',
        'self._run = b""',
        ("tests/server/text/test_detokenize.py::test_a_broken_run_spoils_no_later_one",),
    ),
    Mutant(
        "who-goes-away-takes-the-check-that-others-wait-for-along",
        "server/structured/checker.py",
        "checked = await asyncio.shield(checking)",
        "checked = await checking",
        ("tests/server/structured/test_checker.py::test_one_that_goes_away_leaves_the_others",),
    ),
    Mutant(
        "markers-do-not-shift-where-tokens-begin",
        "server/conversation/parsing/reader.py",
        "self._shift += len(own) - len(sentinel)",
        "self._shift += len(own)",
        ("tests/server/conversation/parsing/test_reader.py::test_every_chunking_is_the_same",),
    ),
    Mutant(
        "labels-take-no-room-in-the-context",
        "server/endpoints/scoring/prepare.py",
        "int(texts.items.lens[at]) + longest",
        "int(texts.items.lens[at])",
        ("tests/server/endpoints/scoring/test_prepare.py::test_refused",),
    ),
    Mutant(
        "drain-ends-while-one-request-remains",
        "server/http/lifecycle.py",
        "if self._num_inside == 0:",
        "if self._num_inside <= 1:",
        ("tests/server/http/test_outcomes.py::TestDraining::test_waits_for_the_last_request",),
    ),
    Mutant(
        "outcome-counted-twice-when-cancelled",
        "server/http/outcomes.py",
        'account.outcome = "abort"',
        'self._metrics.outcomes["abort"].inc(); account.outcome = "abort"',
        (
            "tests/server/http/test_outcomes.py::TestAccounts::test_a_request_that_is_cancelled_counts_once",
        ),
    ),
    Mutant(
        "stop-string-inside-another-is-missed",
        "server/text/stop.py",
        "self.ends[node] = self.ends[node] or self.ends[fallback]",
        "self.ends[node] = self.ends[node]",
        ("tests/server/text/test_stop.py::test_find",),
    ),
    Mutant(
        "text-that-may-begin-a-stop-string-is-given-out",
        "server/text/stop.py",
        "self.held[node] = depth if children else self.held[fallback]",
        "self.held[node] = depth if children else 0",
        ("tests/server/text/test_stop.py::test_held",),
    ),
    Mutant(
        "held-byte-before-ascii-shifts-where-tokens-start",
        "server/text/detokenize.py",
        "if whole.isascii() and not self._decoder.getstate()[0]:",
        "if whole.isascii():",
        ("tests/server/text/test_detokenize.py::test_where_tokens_begin_in_broken_text",),
    ),
    Mutant(
        "logprobs-given-out-twice",
        "server/generation/logprob_queue.py",
        "self._parts[0] = (arrays, upto, stop)",
        "self._parts[0] = (arrays, upto - 1, stop)",
        ("tests/server/generation/test_logprob_queue.py::test_in_order",),
    ),
    Mutant(
        "only-a-prefix-of-the-next-label-is-refused",
        "server/scoring/labels.py",
        "if b[: len(a)] == a:",
        "if a == b:",
        ("tests/server/scoring/test_labels.py::test_errors_name_both_labels",),
    ),
    Mutant(
        "admitted-choices-are-not-counted",
        "server/http/admission.py",
        "beyond_rows = in_flight - self._engine.info.max_rows",
        "beyond_rows = in_flight - num_choices - self._engine.info.max_rows",
        ("tests/server/http/test_admission.py::test_zero_lets_only_rows_in",),
    ),
    Mutant(
        "choices-of-other-fronts-are-not-counted",
        "server/fronts.py",
        "return int(self._rows[:, _IN_FLIGHT].sum())",
        "return int(self._own[_IN_FLIGHT])",
        ("tests/server/test_fronts.py::test_admission_is_one_over_all_fronts",),
    ),
    Mutant(
        "a-front-that-leads-takes-the-whole-burst",
        "server/http/acceptor.py",
        "return mine > self._fronts.least_connections + LEAD",
        "return False",
        ("tests/server/http/test_acceptor.py::test_a_burst_is_shared_evenly",),
    ),
    Mutant(
        "seed-0-counts-as-none",
        "server/generation/translation.py",
        "None if seed == -1 else seed",
        "None if seed == -1 else seed or None",
        ("tests/server/generation/test_translation.py::TestToTheEngine::test_seed_zero_is_a_seed",),
    ),
    Mutant(
        "max-completion-tokens-0-counts-as-none",
        "server/endpoints/chat/schema.py",
        "return self.max_completion_tokens if self.max_tokens is None else self.max_tokens",
        "return self.max_completion_tokens or self.max_tokens",
        ("tests/server/endpoints/chat/test_route.py::TestReply::test_nothing_generated",),
    ),
    Mutant(
        "a-hidden-token-ends-a-run-of-bytes",
        "server/text/detokenize.py",
        "in_run = token_id in self._byte_ids or not raw",
        "in_run = token_id in self._byte_ids",
        ("tests/server/text/test_detokenize.py::test_a_token_without_text_does_not_end_a_run",),
    ),
    Mutant(
        "an-idle-engine-s-last-count-of-waiting-is-heeded",
        "server/http/admission.py",
        "if stats is not None and in_flight > num_choices else 0",
        "if stats is not None else 0",
        ("tests/server/http/test_admission.py::test_what_an_idle_engine_said_last_is_not_heeded",),
    ),
    Mutant(
        "a-label-s-node-forgets-how-it-was-reached",
        "server/scoring/labels.py",
        "reached[:, m] + by_node[:, m, j]",
        "by_node[:, m, j]",
        ("tests/server/scoring/test_labels.py::test_labels_and_others_share_all_the_mass",),
    ),
    Mutant(
        "logprobs-are-dealt-out-by-characters",
        "server/endpoints/responses/output.py",
        "self._num_bytes_owed += len(text.encode())",
        "self._num_bytes_owed += len(text)",
        (
            "tests/server/endpoints/responses/test_output.py::test_logprobs_go_to_the_item_that_has_their_bytes",
        ),
    ),
    Mutant(
        "the-start-of-a-block-shows-what-comes-later",
        "server/endpoints/messages/shape.py",
        "content_block=dict(block))",
        "content_block=block)",
        (
            "tests/server/endpoints/messages/test_route.py::test_a_joined_stream_equals_the_plain_reply",
        ),
    ),
    Mutant(
        "white-space-in-front-of-a-marker-is-given-out",
        "server/conversation/parsing/machine.py",
        "if self._holds_space and text[-1] in _SPACES:",
        "if self._holds_space and text.isspace():",
        ("tests/server/conversation/parsing/test_machine.py::test_text_that_flows",),
    ),
    Mutant(
        "a-new-front-is-not-reported-that-the-engine-failed",
        "server/command/fronts/supervisor.py",
        "            child.send(self._engine_failure)\n",
        "",
        (
            "tests/server/command/fronts/test_supervisor.py::test_a_front_that_dies_is_started_again_and_its_row_is_cleared",
        ),
    ),
    Mutant(
        "traces-beyond-a-batch-wait-for-ever",
        "server/http/traces.py",
        "while self._ended and not self._has_given_up:",
        "if self._ended and not self._has_given_up:",
        ("tests/server/http/test_traces.py::test_what_waits_is_bounded_and_the_newest_stay",),
    ),
    Mutant(
        "one-connection-makes-room-for-several",
        "server/http/connections.py",
        "                del self._idle[oldest]\n",
        "                pass\n",
        (
            "tests/server/http/test_connections.py::test_connections_that_come_at_once_each_close_another",
        ),
    ),
    Mutant(
        "who-leaves-before-the-first-token-is-an-error",
        "server/generation/streaming.py",
        'generation.close("abort" if isinstance(error, ClientGoneError) else "error")',
        'generation.close("error")',
        (
            "tests/server/http/test_disconnect.py::test_hanging_up_before_the_first_token_is_an_abort",
        ),
    ),
    Mutant(
        "each-front-runs-a-self-test",
        "server/fronts.py",
        "if self._rows[:, _SELF_TESTS].sum() == 1:",
        "if self._own[_SELF_TESTS] == 1:",
        ("tests/server/test_self_test.py::test_one_over_all_fronts",),
    ),
    Mutant(
        "an-endpoint-s-limit-has-the-name-of-the-spec",
        "server/endpoints/responses/schema.py",
        'max_tokens="max_output_tokens"',
        'max_tokens="max_tokens"',
        (
            "tests/server/endpoints/responses/test_route_refusals.py::TestRefusals::test_limits_have_the_names_of_this_route",
        ),
    ),
    Mutant(
        "a-limit-beyond-the-context-is-cut",
        "server/generation/max_tokens.py",
        "if max_tokens > room and not fits_context:",
        "if max_tokens > room and not (fits_context or room):",
        ("tests/server/generation/test_prepare.py::test_refused",),
    ),
    Mutant(
        "a-parameter-is-not-read-off-its-field",
        "server/generation/translation.py",
        "if name not in _OWN]",
        'if name not in _OWN and name != "min_p"]',
        (
            "tests/server/generation/test_translation.py::TestToTheEngine::test_every_sampling_field",
        ),
    ),
    Mutant(
        "a-grammar-beside-thoughts-begins-with-them",
        "server/conversation/constraints.py",
        "after=thoughts.answer if thoughts and waits else (),",
        "after=(),",
        ("tests/server/endpoints/chat/test_thinking.py::test_a_reply_may_skip_its_thoughts",),
    ),
)
