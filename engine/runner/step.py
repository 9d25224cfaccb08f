"""The second half of every step, eager or captured: from hidden states to tokens in their rows.

The first half, `engine.runner.forward`, leaves hidden states. This one makes logits, draws from
them or verifies drafts, enters the tokens into their rows and lets the drafter propose the next
ones. A graph can hold it where `StepInputs` has fixed addresses: nothing here looks at a value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine.batch import StepInputs
from engine.contracts.model import CausalLM, Hidden
from engine.kernels.lora.groups import ActiveAdapters, TokenGroups
from engine.runner.speculation import Speculation
from sampling.batch import LogprobsOutput
from sampling.sampler import Sampler


class StepTokens(NamedTuple):
    """The tokens that L rows drew from N logit rows, on the device.

    Attributes:
        token_ids: int32 [L, 1 + num_drafts]. bad: bool [L].
        num_new, num_offered, num_accepted: int32 [L], as in `StepResult`; None without drafts.
        logprobs: of the N logit rows.
    """

    token_ids: torch.Tensor
    bad: torch.Tensor
    num_new: torch.Tensor | None
    num_offered: torch.Tensor | None
    num_accepted: torch.Tensor | None
    logprobs: LogprobsOutput | None

    def named(self) -> dict[str, torch.Tensor]:
        """The tensors there are, by name, those of the logprobs among them."""
        tensors = self._asdict()
        logprobs: LogprobsOutput | None = tensors.pop("logprobs")
        named = {} if logprobs is None else logprobs._asdict()
        return named | {name: tensor for name, tensor in tensors.items() if tensor is not None}


@dataclass(frozen=True)
class TokenStage:
    """Makes a step's tokens from its hidden states.

    Attributes:
        speculation: None where nothing is drafted.
        active: what the LM head reads of adapters.
    """

    model: CausalLM
    sampler: Sampler
    speculation: Speculation | None
    active: ActiveAdapters = field(default_factory=ActiveAdapters)

    def __call__(
        self, inputs: StepInputs, hidden: Hidden, head: TokenGroups | None = None
    ) -> StepTokens | None:
        """Draw or verify, enter the tokens, propose drafts; None where no row draws.

        Args:
            hidden: of the step's T tokens; there may be more after them.
            head: the adapters of the N tokens whose logits are made; None for none.
        """
        tokens = self._tokens(inputs, hidden, head)
        if tokens is None:
            ends = inputs.row_writer.enter(None, None)
        else:
            ends = inputs.row_writer.enter(tokens.token_ids, tokens.num_new)
        if inputs.drafting is None:
            return tokens
        assert self.speculation is not None, "only a drafter has rows to draft for"
        assert ends is not None, "a row writer reports where rows end that are drafted for"
        self.speculation.propose(inputs, inputs.drafting, ends, hidden)
        return tokens and tokens._replace(num_offered=ends.num_offered)

    def _tokens(
        self, inputs: StepInputs, hidden: Hidden, head: TokenGroups | None
    ) -> StepTokens | None:
        if inputs.sampling is None:
            return None
        with self.active.using(head):
            logits = self.model.logits(hidden.final[inputs.logit_tokens])
        if inputs.drafts is None:
            drawn = self.sampler.draw(logits, inputs.sampling)
            return StepTokens(drawn.token_ids[:, None], drawn.bad, None, None, None, drawn.logprobs)
        assert self.speculation is not None, "only a drafter leaves drafts"
        verified = self.speculation.verify(logits, inputs.sampling, inputs.drafts)
        return StepTokens(
            token_ids=verified.token_ids,
            bad=verified.bad,
            num_new=verified.num_new,
            num_offered=None,  # counted when the tokens enter their rows
            num_accepted=verified.num_accepted,
            logprobs=verified.logprobs,
        )
