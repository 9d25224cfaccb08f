"""How many held-out dialogues the demo model leads to their right answer.

Each is led greedily, turn by turn: the server's own parser takes the model's replies apart, calls
are compared with the right ones, and the tools' answers are the dialogue's. At the first wrong
call it ends. An answer is right if it is the dialogue's to the letter.

    python -m demo.evaluate_dialogues     # the shipped model's figures
"""

import argparse
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from demo import MODEL_FOLDER
from demo.chat import CHAT_TEMPLATE, prompt_of
from demo.dialogues import Dialogue, Json, dialogues, without_thoughts
from demo.llama import load_model
from demo.tokens import END_OF_TEXT_ID, TURN_END_ID
from server.conversation.parsing.graph import Graph, make_graph
from server.conversation.parsing.machine import Machine
from server.conversation.parsing.message import MessageWriter
from server.conversation.parsing.recognise import reasoning_format_of, tool_format_of

NUM_DIALOGUES = 400
SEED = 1
MAX_REPLY_TOKENS = 160
BATCH_SIZE = 64
KINDS = ("no call", "one call", "two calls at once", "calls after calls")


@dataclass
class Led:
    """A dialogue as far as the model has led it.

    Attributes:
        num_right: turns of the dialogue that the model, or a tool after it, has made.
        is_wrong: the model's last reply was not the dialogue's.
        last: the model's last reply.
    """

    dialogue: Dialogue
    num_right: int = 0
    is_wrong: bool = False
    last: Json = field(default_factory=dict)

    @property
    def goes_on(self) -> bool:
        return not self.is_wrong and self.num_right < len(self.dialogue.turns)

    @property
    def calls_are_right(self) -> bool:
        """All turns but the answer were made."""
        return self.num_right >= len(self.dialogue.turns) - 1

    @property
    def kind(self) -> str:
        """One of `KINDS`."""
        calls = self.dialogue.calls
        return KINDS[0 if not calls else 3 if len(calls) > 1 else len(calls[0])]

    def enter(self, message: Json) -> None:
        """Compare the model's next reply with the dialogue's."""
        turns, place = self.dialogue.turns, self.num_right
        self.last = message
        self.is_wrong = not _is_same(message, turns[place])
        if not self.is_wrong:
            later = [i for i in self.dialogue.replies if i > place]
            self.num_right = later[0] if later else len(turns)


def reply_graph() -> Graph:
    """What the server takes replies apart by, as it recognises it from the template."""
    return make_graph(reasoning_format_of(CHAT_TEMPLATE), tool_format_of(CHAT_TEMPLATE), {})


def message_of(graph: Graph, text: str) -> Json:
    """The message that the server's parser makes of a reply."""
    machine = Machine(graph, {}, graph.first_state("", ""))
    machine.feed(text)
    machine.finish()
    return MessageWriter("reasoning_content", None, None).message(machine.output.events)


def _is_same(message: Json, right: Json) -> bool:
    """Whether contents and calls are the same; thoughts may differ."""
    if (message["content"] or "") != right.get("content", ""):
        return False
    return _calls_of(message) == _calls_of(right)


def _calls_of(message: Json) -> list[tuple[str, Json | None]]:
    functions = [call["function"] for call in message.get("tool_calls", [])]
    return [(function["name"], _arguments(function["arguments"])) for function in functions]


def _arguments(given: str | Json) -> Json | None:
    if not isinstance(given, str):
        return given
    try:
        read: Json = json.loads(given)
    except json.JSONDecodeError:
        return None
    return read


@torch.inference_mode()
def reply_texts(model: LlamaForCausalLM, tokenizer: Tokenizer, prompts: Sequence[str]) -> list[str]:
    """The model's greedy reply to each prompt, without what ends it."""
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    longest = max(map(len, encoded))
    ids = torch.full((len(encoded), longest), END_OF_TEXT_ID)
    seen = torch.zeros_like(ids)
    for row, each in enumerate(encoded):
        ids[row, longest - len(each) :] = torch.tensor(each)
        seen[row, longest - len(each) :] = 1
    written = model.generate(
        ids.to(model.device),
        attention_mask=seen.to(model.device),
        do_sample=False,
        max_new_tokens=MAX_REPLY_TOKENS,
        eos_token_id=[END_OF_TEXT_ID, TURN_END_ID],
        pad_token_id=END_OF_TEXT_ID,
    )[:, longest:]
    return [_text(tokenizer, row) for row in written.tolist()]


def _text(tokenizer: Tokenizer, ids: list[int]) -> str:
    ends = (END_OF_TEXT_ID, TURN_END_ID)
    kept = itertools.takewhile(lambda token_id: token_id not in ends, ids)
    text: str = tokenizer.decode(list(kept), skip_special_tokens=False)
    return text


def lead(
    model: LlamaForCausalLM, tokenizer: Tokenizer, led: Sequence[Led], *, keeps_thoughts: bool
) -> None:
    """Let the model lead dialogues until all have ended.

    Args:
        keeps_thoughts: prompts show what was thought earlier in the dialogue.
    """
    graph = reply_graph()
    while going := [each for each in led if each.goes_on]:
        prompts = [_prompt(each, keeps_thoughts) for each in going]
        order = sorted(range(len(going)), key=lambda i: len(prompts[i]))
        for picked in _batches(order):
            texts = reply_texts(model, tokenizer, [prompts[i] for i in picked])
            for i, text in zip(picked, texts, strict=True):
                going[i].enter(message_of(graph, text))


def _prompt(led: Led, keeps_thoughts: bool) -> str:
    made = led.dialogue.turns[: led.num_right]
    shown = made if keeps_thoughts else without_thoughts(made)
    return prompt_of(led.dialogue.history + shown, led.dialogue.tools)


def _batches(order: list[int]) -> list[list[int]]:
    return [order[first : first + BATCH_SIZE] for first in range(0, len(order), BATCH_SIZE)]


def table(led: Sequence[Led]) -> str:
    """Shares of dialogues by kind, as Markdown."""
    lines = [
        "| held-out dialogues | number | right calls and arguments | right answer |",
        "| --- | ---: | ---: | ---: |",
    ]
    rows = {kind: [each for each in led if each.kind == kind] for kind in KINDS}
    rows["all with calls"] = [each for each in led if each.dialogue.calls]
    for name, some in rows.items():
        called = _percent(each.calls_are_right for each in some) if name != KINDS[0] else ""
        answered = _percent(not each.is_wrong for each in some)
        lines.append(f"| {name} | {len(some)} | {called} | {answered} |")
    return "\n".join(lines)


def _percent(which: Iterable[bool]) -> str:
    found = list(which)
    return f"{100 * sum(found) / len(found):.1f} %" if found else ""


def measure(
    model: LlamaForCausalLM, tokenizer: Tokenizer, number: int = NUM_DIALOGUES
) -> list[Led]:
    """Lead held-out dialogues, in turns with and without the thoughts of earlier replies."""
    led = [Led(each) for each in itertools.islice(dialogues(SEED, held_out=True), number)]
    lead(model, tokenizer, led[::2], keeps_thoughts=True)
    lead(model, tokenizer, led[1::2], keeps_thoughts=False)
    return led


def main() -> None:
    parser = argparse.ArgumentParser(description="Lead held-out dialogues with the model.")
    parser.add_argument("--model", type=Path, default=MODEL_FOLDER, help="model folder")
    parser.add_argument("--number", type=int, default=NUM_DIALOGUES, help="of dialogues")
    parser.add_argument("--show-wrong", action="store_true", help="print the last replies of these")
    args = parser.parse_args()
    model, tokenizer = load_model(args.model)
    led = measure(model, tokenizer, args.number)
    if args.show_wrong:
        for each in led:
            if each.is_wrong:
                print(each.dialogue.history[-1]["content"], each.dialogue.turns[each.num_right])
                print("   ", each.last)
    print(table(led))


if __name__ == "__main__":
    main()
