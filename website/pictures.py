"""The sampler's mathematics drawn from `sampling.reference`, which is float64 and plain.

    python -m website.pictures

writes them to `docs/pictures/`; a test holds the files and this module together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sampling import reference
from sampling.noise import LEVEL_TILE, LEVEL_TOKEN, TILE, Purpose, stream
from website.canvas import BLUE, FAINT, GREEN, INK, ORANGE, RED, Canvas

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
SEED, POSITION = 7, 11


def tails() -> str:
    """How often noise falls below a bound: as it should, and as steps of 2^-24 let it."""
    left, top, width, height, low = 56.0, 30.0, 560.0, 260.0, -40
    canvas = Canvas(left + width + 24, top + height + 44, "Where noise of 24 bits ends")

    def at(log_bound: float, log_share: float) -> tuple[float, float]:
        return left + (log_bound - low) / -low * width, top + log_share / low * height

    for power in range(low, 1, 8):
        canvas.line([at(power, 0), at(power, low)], FAINT)
        canvas.line([at(low, power), at(0, power)], FAINT)
        x, _ = at(power, low)
        canvas.text(x, top + height + 16, f"2^{power}" if power else "1", "middle")
        canvas.text(left - 6, at(low, power)[1] + 4, f"2^{power}" if power else "1", "end")
    bounds = np.linspace(low, 0, 161)
    exact = -np.expm1(-np.exp2(bounds))
    canvas.line([at(b, math.log2(p)) for b, p in zip(bounds, exact, strict=True)], BLUE, 2.5)
    steps = np.floor(exact * 2**24) / 2**24  # uniforms k / 2^24, none below the first
    some = [(b, p) for b, p in zip(bounds, steps, strict=True) if p > 0]
    canvas.line([at(b, math.log2(p)) for b, p in some], RED, 1.5)
    first, _ = some[0]
    canvas.line([at(first, -24), at(first, low)], RED, 1.5)
    gap = -20.5 / math.log(2)
    canvas.line([at(gap, 0), at(gap, low)], ORANGE)
    canvas.text(
        at(gap, 0)[0] - 6, top + height - 10, "20.5 below the head wins left of here", "end", ORANGE
    )
    canvas.text(at(-15, -6)[0], at(0, -6)[1], "64-bit uniforms: down to 2^-65", "end", BLUE)
    canvas.text(
        at(first, -36)[0] + 8, at(0, -36)[1], "24-bit uniforms: nothing below 2^-24", colour=RED
    )
    canvas.text(left, 16, "P(E < x) of an exponential E")
    canvas.text(left + width, top + height + 34, "x", "end")
    return canvas.svg()


def race() -> str:
    """One draw: the tiles race, then the tokens of the tile that won."""
    logits = np.full(4 * TILE, -9.0)
    heads = [5, 40, 300, 301, 900, 1100, 1101, 1400, 2500, 2501, 2502, 3000, 3300, 3301]
    logits[heads] = [3, 1.6, 2.5, 2.2, 1.9, 3.2, 1, 2.4, 2, 2.9, 2.2, 1.8, 1.5, 0.7]
    won = reference.race(
        logits, temperature=1.0, seed=SEED, position=POSITION, choice=0, purpose=Purpose.TARGET
    )
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    masses = weights.reshape(4, TILE).sum(axis=1)
    tile = won.token_id // TILE
    tiles = _keys(range(4), masses, stream(Purpose.TARGET, LEVEL_TILE))
    ids = range(tile * TILE, (tile + 1) * TILE)
    tokens = _keys(ids, weights[ids.start : ids.stop], stream(Purpose.TARGET, LEVEL_TOKEN))
    best = sorted(tokens, key=lambda key: -key[1])[:5]
    canvas = Canvas(660, 186, "The race in two levels")
    _racers(canvas, 0, "tiles of 1,024 ids", [(f"tile {i}", p, key) for i, p, key in tiles])
    _racers(canvas, 340, f"ids of tile {tile}", [(f"id {i}", p, key) for i, p, key in best])
    assert min(tiles, key=lambda key: key[2])[0] == tile
    assert min(tokens, key=lambda key: key[2])[0] == won.token_id
    return canvas.svg()


def _keys(ids: range, weights: reference.Floats, level: int) -> list[tuple[int, float, float]]:
    """Each racer's index, weight and time E / weight."""
    noise = [reference.exponential(SEED, i, POSITION, 0, level) for i in ids]
    return [(i, float(w), e / w) for i, w, e in zip(ids, weights, noise, strict=True)]


def _racers(canvas: Canvas, x: float, title: str, rows: list[tuple[str, float, float]]) -> None:
    """Weights as bars, times beside them; the first to arrive is green."""
    canvas.text(x, 16, title)
    canvas.text(x + 70, 36, "weight p")
    canvas.text(x + 300, 36, "E / p", "end")
    winner = min(key for _, _, key in rows)
    largest = max(p for _, p, _ in rows)
    for i, (name, p, key) in enumerate(rows):
        y = 44 + 28 * i
        canvas.text(x + 62, y + 14, name, "end")
        canvas.rect(x + 70, y, p / largest * 160, 18, GREEN if key == winner else BLUE)
        canvas.text(x + 300, y + 14, f"{key:.3g}", "end", GREEN if key == winner else INK)


def counts() -> str:
    """How often each of eight tokens wins 4,000 draws, beside its probability."""
    logits, num_draws = np.array([2.0, 1.5, 1.2, 0.8, 0.2, -0.5, -1.0, -2.0]), 4000
    p = np.exp(logits) / np.exp(logits).sum()
    wins = np.zeros(8)
    for position in range(num_draws):
        won = reference.race(
            logits,
            temperature=1.0,
            seed=SEED,
            position=position,
            choice=0,
            purpose=Purpose.TARGET,
        )
        wins[won.token_id] += 1
    share, top, height = wins / num_draws, 28.0, 180.0
    error = np.sqrt(p * (1 - p) / num_draws)
    canvas = Canvas(520, top + height + 30, "4,000 draws of the race beside the distribution")
    canvas.text(0, 16, "4,000 draws: share of wins, and p with three standard errors")
    scale = height / float((p + 4 * error).max())
    for i in range(8):
        x, floor = 20 + 62.0 * i, top + height
        canvas.rect(x, floor - share[i] * scale, 40, share[i] * scale, BLUE)
        for sign in (-3, 3):
            y = floor - max(p[i] + sign * error[i], 0) * scale
            canvas.line([(x + 12, y), (x + 28, y)], ORANGE, 2)
        canvas.line([(x - 4, floor - p[i] * scale), (x + 44, floor - p[i] * scale)], ORANGE, 2)
        canvas.text(x + 20, floor + 18, f"token {i}", "middle")
    return canvas.svg()


def filters() -> str:
    """Which tokens of one distribution each filter keeps."""
    logits = -1.1 * np.log(np.arange(1, 41)) + 0.25 * np.cos(np.arange(40))
    order = np.lexsort((np.arange(40), -logits))
    p = np.exp(logits[order])
    p /= p.sum()
    rows = [
        ("min-p 0.1", reference.kept(logits, temperature=1.0, min_p=0.1)),
        ("top-k 12", reference.kept(logits, temperature=1.0, top_k=12)),
        ("top-p 0.8", reference.kept(logits, temperature=1.0, top_p=0.8)),
        ("all three", reference.kept(logits, temperature=1.0, min_p=0.1, top_k=12, top_p=0.8)),
    ]
    top, height, left, step = 28.0, 150.0, 90.0, 13.0
    canvas = Canvas(left + step * 40 + 60, top + height + 16 + 22 * len(rows), "The filters")
    canvas.text(0, 16, "40 tokens by probability, and what each filter keeps: always a prefix")
    for i in range(40):
        x = left + step * i
        tall = p[i] / p[0] * height
        canvas.rect(x, top + height - tall, step - 2, tall, BLUE)
        for row, (_, kept) in enumerate(rows):
            colour = GREEN if kept[order[i]] else FAINT
            canvas.rect(x, top + height + 12 + 22 * row, step - 2, 14, colour)
    for row, (name, kept) in enumerate(rows):
        y = top + height + 24 + 22 * row
        canvas.text(left - 8, y, name, "end")
        canvas.text(left + step * 40 + 6, y, f"{p[kept[order]].sum():.3f}")
    return canvas.svg()


PICTURES: dict[str, Callable[[], str]] = {
    "tails.svg": tails,
    "race.svg": race,
    "counts.svg": counts,
    "filters.svg": filters,
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PICTURES.items():
        (FOLDER / name).write_text(make())


if __name__ == "__main__":
    main()
