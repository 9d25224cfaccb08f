"""`POST /v1/completions` as clients write it. Null means the default, everywhere."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from server.errors import ClientNames
from server.generation.prompt_field import PromptField
from server.schema.fields import MAX_TEXT_CHARS, Instead, NotYet
from server.schema.generation import GenerationFields


class CompletionRequest(GenerationFields):
    """Continue each prompt."""

    client_names: ClassVar = ClientNames(prompts="prompt")

    prompt: PromptField = Field(
        description="A string, a list of strings, a list of token ids, or a list of such lists."
    )
    logprobs: int | None = Field(
        None,
        ge=-1,
        description="The reply shows the logprob of each generated token and of this many top "
        "tokens beside it; -1 shows all, where --max-logprobs allows as many.",
    )
    echo: bool | None = Field(None, description="The text begins with the prompt.")
    suffix: str | None = Field(
        None,
        max_length=MAX_TEXT_CHARS,
        description="What follows the text: it is filled in between, by a tokenizer that has "
        "markers for that. Prompts are texts then.",
    )
    best_of: int | None = Field(
        None, ge=1, description="This must be null or `n`: no choice is left out."
    )
    add_special_tokens: bool | None = Field(
        None, description="The tokenizer adds its beginning of text; the default is true."
    )
    max_completion_tokens: Annotated[Any, Instead("max_tokens")] = None

    thinking_token_budget: NotYet = None
    prompt_embeds: NotYet = None

    @property
    def num_top(self) -> int | None:
        """The top tokens that are shown at each generated position; None for no logprobs."""
        return self.logprobs

    @property
    def echoes_prompt(self) -> bool:
        """Whether the text begins with the prompt, whose tokens then have logprobs too."""
        return bool(self.echo)

    @property
    def sends_prompt_parts(self) -> bool:
        """Whether chunks carry what is reported of the prompt as it is computed."""
        is_packed = self.logprobs_format == "packed"
        return bool(self.stream) and is_packed and not self.echo and (self.n or 1) == 1
