"""The text on which a quantised server's error is measured, and its ids."""

from __future__ import annotations

import logging

import torch

from engine.structured.tokenizer import TokenizerError, TokenizerReader

logger = logging.getLogger(__name__)

NUM_TOKENS = 512
"""Most tokens of it that are taken."""

NAME = "tailrace-1"
"""Changes with the text, so that figures of two texts are not compared."""

TEXT = '''\
The tide mill at the mouth of the river is older than the bridge. Twice a day the sea fills the \
pond behind the dam through gates that open inward; when the water outside begins to fall they \
close by themselves, and the miller waits until the wheel stands free. What leaves the wheel flows \
off through a narrow channel, the tail race. If that channel is too shallow, water backs up under \
the wheel and the mill loses more than it gains: the quiet part, below all else, decides how much \
of the fall can be used. "Nobody looks at it," the miller said, "until it is blocked."

In 1871 the owners measured it. With 2.4 metres of fall and 310 litres a second the wheel should \
have given 7.3 kW; it gave 4.1. They deepened the race by forty centimetres, which took ten days \
and cost less than a new wheel would have, and measured again: 6.2 kW. Three questions were left. \
Where did the rest go? Would a second wheel pay for itself? And who would keep the channel clear?

def power(fall, flow, efficiency=0.85, density=1000.0, gravity=9.81):
    """Return the power of a wheel in watts.

    fall is in metres, flow in cubic metres a second.
    """
    if fall < 0 or flow < 0:
        raise ValueError(f"fall and flow must not be negative, got {fall} and {flow}")
    return efficiency * density * gravity * fall * flow

for year, watts in sorted(readings.items()):
    lost = power(2.4, 0.31, efficiency=1.0) - watts
    print(f"{year}: {watts / 1000:.1f} kW, {lost / 1000:.1f} kW lost")

{"site": "tide mill", "year": 1872, "wheels": [{"diameter_m": 4.5, "blades": 32}], "open": true}

Q: What is the tail race of a mill?
A: The channel that carries the water away from the wheel.
Q: Why must it be deep enough?
A: Because water that stands against the wheel holds it back.

Das Wasser, das die Arbeit getan hat, muss weg. L'eau qui a travaillé doit partir. El agua que ya \
trabajó tiene que irse. The list of what to check each spring: (1) the gates, (2) the sluice, (3) \
the bed of the channel, (4) the grease on both bearings. Then the season begins, and on the first \
ebb of April, a little after four in the morning, the wheel turns again.
'''


def error_text(reader: TokenizerReader | None, vocab_size: int) -> tuple[str, torch.Tensor]:
    """The text's name, and its ids int64 [T]; of arbitrary tokens where nothing can encode it.

    Args:
        reader: of the model's tokenizer.
    """
    ids: list[int] = []
    if reader is not None:
        try:
            ids = reader.token_ids(TEXT)[:NUM_TOKENS]
        except TokenizerError as error:
            logger.warning("the error of quantization is stated on arbitrary tokens: %s", error)
    if ids and max(ids) < vocab_size:
        return NAME, torch.tensor(ids)
    return "arbitrary tokens", torch.arange(NUM_TOKENS) * 7919 % vocab_size
