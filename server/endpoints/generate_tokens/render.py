"""Choices of token ids as reply objects: the shape of vLLM's `/inference/v1/generate`."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from engine.arrays import LogprobArrays
from engine.messages.step_output import PromptLogprobs
from server.endpoints.generate_tokens.schema import GenerateTokensRequest
from server.errors import ApiError
from server.generation.choice import Piece, ReplyChoice
from server.generation.generation import Generation
from server.generation.logprobs import Columns, fragment
from server.generation.prepare import PreparedRequest
from server.generation.render import Renderer, WrittenPiece
from server.generation.routes import Routes
from server.generation.streaming import DONE
from server.generation.support import support_of
from server.text.json_fragments import texts_of
from server.text.packed import check_finite


class TokenRenderer(Renderer):
    """Writes choices as token ids, with logprobs by id."""

    def __init__(self, prepared: PreparedRequest, body: GenerateTokensRequest) -> None:
        super().__init__(prepared)
        self._shows_text = body.output_mode == "text"
        self._shows_support = bool(body.return_sampling_mask)
        self._num_shown = body.sampling_params.logprobs
        self._shows_prompt_ids = bool(body.return_token_ids)
        self.output_mode = body.output_mode
        self._prompt: dict[str, Any] = {}

    def choice(
        self, index: int, prompt_idx: int, piece: Piece, routes: Routes | None = None
    ) -> dict[str, Any]:
        """Make a choice object of a reply or a chunk: a piece after those written ahead."""
        form = self._form
        written = [*self._ahead.pop(index, ()), self._write(index, prompt_idx, piece)]
        pieces = [each.piece for each in written]
        choice: dict[str, Any] = {
            "index": index,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "token_ids": [token_id for each in pieces for token_id in each.token_ids],
            "logprobs": self._token_logprobs(written),
            "routed_experts": None if routes is None else self.packed_routes(routes.ids),
            "sampling_mask": self._support(pieces),
            "weight_versions": None,
        }
        if routes is not None and routes.weights is not None:
            choice["routed_expert_weights"] = npy(routes.weights)
        if self._shows_text:
            choice["text"] = "".join(each.text for each in pieces)
        if piece.finish_reason is not None:
            choice["weight_versions"] = list(map(msgspec.structs.asdict, piece.weight_versions))
        if form.explicit_ids is not None:
            choice["logprob_token_ids"] = self._explicit(form.explicit_ids, written)
        if form.kept:
            choice["kept_logprobs"] = self._kept(written)
        if form.origins:
            choice["token_origins"] = self._origins(written)
        if pieces[0].first:
            self._note_prompt(prompt_idx, pieces[0].prompt_logprobs)
        return choice

    def packed_routes(self, ids: npt.NDArray[Any]) -> Any:
        """Ids of experts as they are written."""
        return npy(ids)

    def chunk(self, index: int, prompt_idx: int, piece: Piece) -> bytes:
        """Write the choice object of a chunk."""
        return orjson.dumps(self.choice(index, prompt_idx, piece))

    def _columns(self, prompt_idx: int, piece: Piece) -> list[Columns]:
        """The entries of a piece's tokens, if they are shown one by one.

        A next token's logprobs, where nothing is generated, are of no token.
        """
        arrays = piece.logprobs if piece.token_ids else None
        if self._num_shown is None or self._form.packed or arrays is None:
            return []
        return [{"content": self._entries(piece.token_ids, arrays)}]

    def _token_logprobs(self, written: list[WrittenPiece]) -> Any:
        """The `logprobs` of a choice: an entry for each token, or packed arrays."""
        if self._num_shown is None:
            return None
        if self._form.packed:
            [one] = written  # nothing is written ahead
            return {**self._packed(0, one.piece), "mode": self._form.mode}
        contents = [columns["content"] for each in written for columns in each.columns]
        return {"content": fragment(",".join(filter(None, contents))), "mode": self._form.mode}

    def _entries(self, token_ids: list[int], arrays: LogprobArrays) -> str:
        """The entries of tokens, each with its top list: the token itself, then others by rank."""
        num_top = self._num_shown or 0
        names = self._tokenizer.fragments.names(token_ids, as_ids=self._form.tokens_as_ids)
        heads = [
            f'"token_id":{token_id},"token":{name},"logprob":{value},"rank":{rank}'
            for token_id, name, value, rank in zip(
                token_ids, names, texts_of(arrays.chosen), texts_of(arrays.ranks), strict=True
            )
        ]
        tops = [f"{{{head}}}" for head in heads]
        if num_top:
            tops = self._top_lists(token_ids, arrays.narrow(num_top, 0), tops)
        return ",".join(
            f'{{{head},"top_logprobs":[{top}]}}' for head, top in zip(heads, tops, strict=True)
        )

    def _top_lists(
        self, token_ids: list[int], arrays: LogprobArrays, firsts: list[str]
    ) -> list[str]:
        width = arrays.num_top
        ids = arrays.top_ids.reshape(-1).tolist()
        values = texts_of(arrays.top_logprobs.reshape(-1))
        names = self._tokenizer.fragments.names(ids, as_ids=self._form.tokens_as_ids)
        lists = []
        for row, (token_id, first) in enumerate(zip(token_ids, firsts, strict=True)):
            others = [
                f'{{"token_id":{ids[i]},"token":{names[i]},"logprob":{values[i]},"rank":{rank}}}'
                for rank, i in enumerate(range(row * width, (row + 1) * width), 1)
                if ids[i] != token_id
            ]
            lists.append(",".join([first, *others]))
        return lists

    def _support(self, pieces: list[Piece]) -> list[list[int]] | None:
        if not self._shows_support:
            return None
        return [
            ids for each in pieces if each.logprobs is not None for ids in support_of(each.logprobs)
        ]

    def _note_prompt(self, prompt_idx: int, reported: PromptLogprobs | None) -> None:
        """Keep what the reply as a whole says of the prompt."""
        fields = self._prompt_fields(prompt_idx, reported)
        if not self._shows_prompt_ids:
            del fields["prompt_token_ids"]
        explicit = fields.pop("prompt_logprob_token_ids", None)
        if explicit is not None:
            assert self._form.prompt_explicit_ids is not None
            width = self._form.prompt_explicit_ids.shape[-1]
            values = np.zeros((0, width), dtype=np.float32)
            if reported is not None:
                values = reported.logprobs.explicit[:, :width]
            check_finite(values)
            fields["prompt_token_id_logprobs"] = npy(values)
        self._prompt = {**fields, **self._prompt}

    def whole(
        self, generation_usage: dict[str, Any], metrics: dict[str, Any] | None
    ) -> dict[str, Any]:
        """What a reply has besides its choices."""
        prepared = self._prepared
        return {
            "request_id": prepared.spec.reply_id,
            "output_mode": self.output_mode,
            "model": prepared.spec.model,
            "created": prepared.created,
            **self._prompt,
            "usage": generation_usage,
            "metrics": metrics,
            "system_fingerprint": str(prepared.fingerprint),
        }

    def reply(
        self, choices: list[ReplyChoice], usage: dict[str, Any], metrics: dict[str, Any] | None
    ) -> bytes:
        """Write the whole reply, once every choice has ended."""
        written = [
            self.choice(choice.index, choice.prompt_idx, piece, choice.routes)
            for choice in choices
            if (piece := choice.take()) is not None
        ]
        return orjson.dumps({"choices": written, **self.whole(usage, metrics)})

    def is_big(self, choices: Sequence[ReplyChoice]) -> bool:
        """Whether what is left to write of a whole reply is to be written off the event loop."""
        has_routes = self._form.routes is not None
        return self._shows_support or has_routes or super().is_big(choices)


class TokenChunkWriter:
    """Writes pieces as chunks of vLLM's stream, one choice each."""

    begins_big = False

    def __init__(self, generation: Generation, renderer: TokenRenderer) -> None:
        self._generation = generation
        self._renderer = renderer
        self._form = generation.prepared.spec.form
        self._has_begun = False

    def chunks(self, changed: list[ReplyChoice]) -> bytes:
        """Write frames of what these choices can give out now; there may be none."""
        frames = []
        for choice in changed:
            if (piece := choice.take()) is not None:
                routes = choice.routes
                body = self._renderer.choice(choice.index, choice.prompt_idx, piece, routes)
                frames.append(self._frame([body], with_usage=self._form.usage_always))
        return b"".join(frames)

    def _frame(self, choices: list[dict[str, Any]], *, with_usage: bool) -> bytes:
        usage = self._generation.tally.usage() if with_usage else {}
        whole = self._renderer.whole(usage, None)
        if self._has_begun:  # only the first chunk reports the prompt
            whole = {name: value for name, value in whole.items() if not name.startswith("prompt_")}
        self._has_begun = True
        whole["usage"] = usage or None
        whole["metrics"] = (
            self._generation.tally.draft_metrics() if self._generation.ended else None
        )
        return b"data: " + orjson.dumps({"choices": choices, **whole}) + b"\n\n"

    def end(self) -> bytes:
        """Write the chunk of usage alone, where it was asked for, and the end."""
        return (self._frame([], with_usage=True) if self._form.usage_at_end else b"") + DONE

    def failure(self, error: ApiError) -> bytes:
        """Write an error as clients raise it, and the end."""
        return b"data: " + orjson.dumps(error.body()) + b"\n\n" + DONE


def npy(values: npt.NDArray[Any]) -> str:
    """An array as the bytes of a `.npy` file in base64."""
    file = io.BytesIO()
    np.save(file, np.ascontiguousarray(values))
    return base64.b64encode(file.getvalue()).decode("ascii")
