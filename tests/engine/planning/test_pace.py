"""Steps of a device whose times are known, over a clock that only they move."""

from __future__ import annotations

from engine.planning.pace import FIRST_TOKENS, LEAST_TOKENS, Pace

GAP_S = 0.012
BASE_S, TOKEN_S = 0.008, 16e-6


class Device:
    """Runs steps one after another; a step is launched before the one before it is read back."""

    def __init__(self, max_gap_s: float | None = GAP_S) -> None:
        self.now = 0.0
        self.base_s, self.token_s = BASE_S, TOKEN_S
        self.pace = Pace(max_gap_s, clock=lambda: self.now)
        self.pace.launched()

    def step(self, num_prompt: int, *, alone: bool = True) -> float:
        """Run a step to its end; returns its seconds."""
        seconds = self.base_s + self.token_s * num_prompt
        self.pace.launched()  # the next
        self.now += seconds
        self.pace.read_back(num_prompt, alone=alone)
        return seconds

    def full_step(self) -> float:
        tokens = self.pace.prompt_tokens
        assert tokens is not None
        return self.step(tokens)


def test_without_a_gap_nothing_is_bounded() -> None:
    device = Device(max_gap_s=None)
    device.step(8192)
    assert device.pace.prompt_tokens is None


def test_steps_keep_to_the_gap_once_one_was_timed() -> None:
    device = Device()
    for _ in range(3):
        device.step(0)
    assert device.pace.prompt_tokens == FIRST_TOKENS
    device.full_step()
    times = [device.full_step() for _ in range(20)]
    assert max(times) <= GAP_S * 1.001
    assert min(times) > 0.95 * GAP_S, "what the gap allows is used"


def test_what_changes_is_followed() -> None:
    """Contexts grow by a quarter while no step goes without a prompt; then most rows end."""
    device = Device()
    for num_prompt in (0, 0, 256):
        device.step(num_prompt)
    device.base_s *= 1.25
    times = [device.full_step() for _ in range(30)]
    assert max(times[15:]) <= GAP_S * 1.02
    device.base_s = BASE_S / 4
    times = [device.full_step() for _ in range(60)]
    assert max(times) <= GAP_S * 1.01
    assert times[-1] > 0.9 * GAP_S


def test_prompts_go_on_where_decoding_alone_is_too_slow() -> None:
    device = Device()
    device.base_s = 2 * GAP_S
    for num_prompt in (0, 256, 256):
        device.step(num_prompt)
    assert device.pace.prompt_tokens == LEAST_TOKENS
    device.base_s = BASE_S  # no step goes without prompt tokens, and yet the end of it is seen
    for _ in range(40):
        device.full_step()
    assert device.pace.prompt_tokens > 2 * LEAST_TOKENS


def test_steps_of_the_fewest_tokens_show_that_a_token_takes_less() -> None:
    """A token took so long that no step had more of them; now it does not."""
    device = Device()
    device.token_s *= 20
    for num_prompt in (0, 0, 256):
        device.step(num_prompt)
    assert device.pace.prompt_tokens == LEAST_TOKENS
    device.token_s = TOKEN_S
    for _ in range(40):
        device.full_step()
    assert device.pace.prompt_tokens > 2 * LEAST_TOKENS


def test_a_hiccup_and_a_pause_change_little() -> None:
    device = Device()
    for num_prompt in (0, 0, 256, 256):
        device.step(num_prompt)
    before = device.pace.prompt_tokens
    device.now += 5.0  # between a launch and its end, as where a process is stopped
    device.step(200)
    assert before is not None
    assert device.pace.prompt_tokens is not None
    assert device.pace.prompt_tokens > before / 1.3


def test_an_idle_engine_times_a_step_from_its_launch() -> None:
    device = Device()
    for num_prompt in (0, 0, 256, 256):
        device.step(num_prompt)
    before = device.pace.prompt_tokens
    device.now += BASE_S
    device.pace.read_back(0)  # the last in flight
    device.now += 60.0
    device.pace.launched()
    device.step(256)
    assert device.pace.prompt_tokens == before


def test_steps_beside_scoring_say_nothing() -> None:
    device = Device()
    for num_prompt in (0, 0, 256, 256):
        device.step(num_prompt)
    before = device.pace.prompt_tokens
    device.base_s *= 10
    device.step(256, alone=False)
    assert device.pace.prompt_tokens == before
