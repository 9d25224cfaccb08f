"""Choices in the shape of SGLang's `/generate`: an object a choice, with its `meta_info`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import orjson

from engine.arrays import Float32Array, Int32Array, LogprobArrays
from engine.messages.step_output import PromptLogprobs
from server.endpoints.sglang_generate.schema import GenerateRequest
from server.errors import ApiError
from server.generation.choice import Piece, ReplyChoice
from server.generation.generation import Generation
from server.generation.prepare import PreparedRequest
from server.generation.render import Renderer
from server.generation.routes import Routes
from server.generation.streaming import DONE
from server.generation.support import support_of
from server.text.json_fragments import dump
from server.text.packed import base64_of

Entry = tuple[float | None, int, str | None]
Json = dict[str, Any]


@dataclass
class _Written:
    """What a choice has said so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    about_prompt: Json = field(default_factory=dict)
    end: Json = field(default_factory=dict)


class GenerateRenderer(Renderer):
    """Writes choices as SGLang does; each object has all that the choice has said so far."""

    def __init__(self, prepared: PreparedRequest, body: GenerateRequest) -> None:
        super().__init__(prepared)
        self._began = time.perf_counter()
        self._body = body
        self._shows = prepared.spec.params.logprobs is not None and bool(body.return_logprob)
        self._written: dict[int, _Written] = {}
        self._is_batch = self._is_several()

    def _is_several(self) -> bool:
        """Whether the reply is a list: of several prompts, or of several choices."""
        return self._prepared.num_choices > 1 or isinstance(self._body.rid, list)

    def write_ahead(self, choices: list[ReplyChoice]) -> None:
        """Take in what these choices can give out."""
        for choice in choices:
            if (piece := choice.take()) is not None:
                self._take(choice, piece)

    def _take(self, choice: ReplyChoice, piece: Piece) -> _Written:
        """What a choice has said with this piece."""
        written = self._written.setdefault(choice.index, _Written())
        written.text += piece.text
        written.token_ids += piece.token_ids
        if (arrays := piece.logprobs) is not None:
            written.logprobs.append(self._values(piece.token_ids, arrays))
        if piece.first:
            prompt = self._prepared.prompts[choice.prompt_idx].token_ids
            written.about_prompt = self._about_prompt(prompt, piece.prompt_logprobs)
        if piece.finish_reason is not None:
            written.end = _end(piece, len(written.token_ids))
        return written

    def object_of(self, choice: ReplyChoice, piece: Piece, num_cached: int) -> Json:
        """What a choice has said with this piece, and what is known of it."""
        written = self._take(choice, piece)
        meta: Json = {
            "id": self._prepared.spec.name_of(choice.prompt_idx),
            "finish_reason": written.end or None,
            "prompt_tokens": len(self._prepared.prompts[choice.prompt_idx].token_ids),
            "completion_tokens": len(written.token_ids),
            "cached_tokens": num_cached,
            "weight_version": choice.weight_version,
            "e2e_latency": time.perf_counter() - self._began,
            **written.about_prompt,
            **_joined(written.logprobs),
        }
        if piece.finish_reason is not None:
            meta["weight_versions"] = list(map(msgspec.structs.asdict, piece.weight_versions))
            meta |= _routes(choice.routes)
        return {"text": written.text, "output_ids": written.token_ids, "meta_info": meta}

    def _about_prompt(self, token_ids: Int32Array, reported: PromptLogprobs | None) -> Json:
        """Values of the prompt's tokens from the one before the first that has any."""
        wanted = self._form.prompt_logprobs
        if wanted is None:
            return {}
        start = wanted.start - 1
        first = self._entries(token_ids[start : start + 1], None)
        none: list[Any] = [None]
        about: Json = {"input_token_logprobs": first}
        arrays = None if reported is None else reported.logprobs
        if arrays is not None:
            about["input_token_logprobs"] = first + self._entries(
                token_ids[start + 1 :], arrays.chosen
            )
        if wanted.num_top:
            about["input_top_logprobs"] = none + ([] if arrays is None else self._tops(arrays))
        if wanted.token_ids:
            rows = [] if arrays is None else self._explicit_rows(arrays)
            about["input_token_ids_logprobs"] = none + rows
        return about

    def _values(self, token_ids: list[int], arrays: LogprobArrays) -> Json:
        """What `meta_info` has of generated tokens."""
        values: Json = {}
        if self._shows and token_ids:
            ids = np.array(token_ids, dtype=np.int32)
            values["output_token_logprobs"] = self._entries(ids, arrays.chosen)
            if self._body.top_logprobs_num:
                values["output_top_logprobs"] = self._tops(arrays)
            if self._form.explicit_ids:
                values["output_token_ids_logprobs"] = self._explicit_rows(arrays)
        if self._body.return_sampling_mask and token_ids:
            values["sampling_mask"] = support_of(arrays)
        return values

    def _entries(self, token_ids: Int32Array, values: Float32Array | None) -> list[Entry]:
        numbers = [None] * len(token_ids) if values is None else _numbers(values)
        ids: list[int] = token_ids.tolist()
        texts: list[str | None] = [None] * len(ids)
        if self._body.return_text_in_logprobs:
            texts = [self._tokenizer.texts[token_id] for token_id in ids]
        return list(zip(numbers, ids, texts, strict=True))

    def _tops(self, arrays: LogprobArrays) -> list[list[Entry]]:
        num_top = self._body.top_logprobs_num or 0
        pairs = zip(arrays.top_ids[:, :num_top], arrays.top_logprobs[:, :num_top], strict=True)
        return [self._entries(ids, values) for ids, values in pairs]

    def _explicit_rows(self, arrays: LogprobArrays) -> list[list[Entry]]:
        ids = np.array(self._form.explicit_ids, dtype=np.int32)
        return [self._entries(ids, row) for row in arrays.explicit[:, : len(ids)]]

    def reply(self, choices: list[ReplyChoice], usage: Json, metrics: Json | None) -> bytes:
        """Write the whole reply, once every choice has ended."""
        cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
        objects = [
            self.object_of(choice, piece, cached if self._prepared.num_choices == 1 else 0)
            for choice in choices
            if (piece := choice.take()) is not None
        ]
        return orjson.dumps(objects if self._is_batch else objects[0])


class GenerateWriter:
    """Writes a stream: an event for each change, with all that the choice has said."""

    begins_big = False

    def __init__(self, generation: Generation, renderer: GenerateRenderer) -> None:
        self._generation = generation
        self._renderer = renderer

    def chunks(self, changed: list[ReplyChoice]) -> bytes:
        """Write events of what these choices can give out now; there may be none."""
        events = []
        for choice in changed:
            if (piece := choice.take()) is not None:
                cached = self._generation.tally.num_cached[choice.prompt_idx]
                body = self._renderer.object_of(choice, piece, cached)
                if self._generation.prepared.num_choices > 1:
                    body["index"] = choice.index
                events.append(b"data: " + orjson.dumps(body) + b"\n\n")
        return b"".join(events)

    def end(self) -> bytes:
        """Write the end."""
        return DONE

    def failure(self, error: ApiError) -> bytes:
        """Write an error, and the end."""
        return b"data: " + orjson.dumps(error.body()) + b"\n\n" + DONE


def _numbers(values: Float32Array) -> list[float | None]:
    """Values as JSON has them: -inf is -9999.0; raises `ApiError` for NaN."""
    numbers: list[float | None] = orjson.loads(dump(values))
    return numbers


def _joined(parts: list[Json]) -> Json:
    """Lists of several pieces, one after another."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: [each for part in parts for each in part.get(name, ())] for name in names}


def _routes(routes: Routes | None) -> Json:
    """Which experts tokens took, as raw numbers in base64."""
    if routes is None:
        return {}
    fields = {"routed_experts": base64_of(routes.ids.astype(np.int32))}
    if routes.weights is not None:
        fields["routed_expert_weights"] = base64_of(routes.weights)
    return fields


def _end(piece: Piece, num_tokens: int) -> Json:
    """Why a choice ended, in SGLang's words."""
    if piece.finish_reason == "stop":
        return {"type": "stop", "matched": piece.stop_reason}
    if piece.finish_reason == "length":
        return {"type": "length", "length": num_tokens}
    return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
