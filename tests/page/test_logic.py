"""The page's arithmetic, run in the browser and compared with the same in numpy."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.page.conftest import SLOW, Tab
from tests.serving.process import Server

pytestmark = SLOW

TOP = 20
ROUNDING = 1e-9
"""Both sides compute in doubles; sums of a few thousand terms lose less than this."""


def call(tab: Tab, module: str, code: str, argument: Any = None) -> Any:
    """What a function of one of the page's modules returns."""
    script = f"async (given) => {{ const m = await import('/page/{module}'); return {code}; }}"
    return tab.page.evaluate(script, argument)


def distribution(rng: np.random.Generator, size: int) -> np.ndarray:
    logits = rng.normal(size=size) * rng.uniform(0.5, 6.0)
    weights = np.exp(logits - logits.max())
    return np.sort(weights / weights.sum())[::-1]


def processed(p: np.ndarray, filters: dict[str, float]) -> tuple[np.ndarray, float]:
    """What temperature and filters make of probabilities in falling order, and what they keep."""
    if filters["temperature"] == 0:
        return p, 1.0
    weights = p ** (1 / filters["temperature"])
    weights /= weights.sum()
    keep = weights >= filters["min_p"] * weights[0]
    if filters["top_k"] > 0:
        keep &= np.arange(len(p)) < filters["top_k"]
    left = np.where(keep, weights, 0.0)
    if filters["top_p"] < 1:
        before = np.cumsum(left) - left
        left = np.where(before < filters["top_p"] * left.sum(), left, 0.0)
    return left / left.sum(), left.sum()


def filters_drawn(rng: np.random.Generator) -> dict[str, float]:
    return {
        "temperature": float(rng.choice([0.0, 0.3, 0.7, 1.0, 1.5, 2.0])),
        "top_k": int(rng.choice([0, 1, 5, 20, 60, 500])),
        "top_p": float(rng.choice([1.0, 0.99, 0.9, 0.5])),
        "min_p": float(rng.choice([0.0, 0.001, 0.05, 0.5])),
    }


def test_bounds_hold_the_exact_values(tab: Tab) -> None:
    """Whatever the unknown tokens are, the truth lies between the bounds."""
    tab.open()
    rng = np.random.default_rng(5)
    cases = []
    for _ in range(600):
        p = distribution(rng, int(rng.choice([24, 300, 3000])))
        cases.append((p, filters_drawn(rng)))
    given = [{"top": p[:TOP].tolist(), "size": len(p), "filters": f} for p, f in cases]
    reported = call(
        tab,
        "lib/distribution.js",
        "given.map((each) => m.processedBounds(each.top, each.size, each.filters))",
        given,
    )
    narrow = 0
    for (p, filters), bounds in zip(cases, reported, strict=True):
        exact, kept = processed(p, filters)
        for i, (low, high) in enumerate(bounds["processed"]):
            assert low - ROUNDING <= exact[i] <= high + ROUNDING, (filters, i)
            cut = bounds["cuts"][i]
            if cut != "open":
                # A sum within rounding of top-p may go either way.
                assert (exact[i] == 0.0) == (cut is not None) or filters["top_p"] < 1
        assert bounds["kept"][0] - ROUNDING <= kept <= bounds["kept"][1] + ROUNDING, filters
        rest = exact[TOP:].sum()
        assert bounds["rest"][0] - ROUNDING <= rest <= bounds["rest"][1] + ROUNDING, filters
        narrow += bounds["processed"][0][1] - bounds["processed"][0][0] < 0.05
    assert narrow > 300, "bounds that say nothing would hold too"


def test_entropy_lies_in_its_range(tab: Tab) -> None:
    tab.open()
    rng = np.random.default_rng(6)
    all_p = [distribution(rng, 3000) for _ in range(100)]
    reported = call(
        tab,
        "lib/distribution.js",
        "given.map((top) => m.entropy(top, 3000))",
        [p[:TOP].tolist() for p in all_p],
    )
    for p, (low, high) in zip(all_p, reported, strict=True):
        exact = -(p[p > 0] * np.log2(p[p > 0])).sum()
        assert low - 1e-4 <= exact <= high + 1e-4  # a rest below 1e-6 is left out


def test_ids_and_states_come_back_from_an_address(tab: Tab) -> None:
    tab.open()
    ids = [0, 1, 127, 128, 300, 16383, 16384, 151935, 2**20]
    assert call(tab, "lib/ids.js", "m.unpackIds(m.packIds(given))", ids) == ids
    state = {"text": "é🙂\n</script>", "numbers": [1, 0.5, None], "long": "x" * 20000}
    packed = call(tab, "lib/ids.js", "await m.packState(given)", state)
    assert len(packed) < 300
    assert set(packed) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
    assert call(tab, "lib/ids.js", "await m.unpackState(given)", packed) == state


@pytest.mark.parametrize(
    ("text", "items", "kind"),
    [
        ("a\nb\n\n", ["a", "b"], "lines"),
        ("Hello, world\nYes, no", ["Hello, world", "Yes, no"], "lines"),
        ('"a"\n{"item": "b", "n": 1}\n["c", "d"]', ["a", "b", "c", "d"], "JSON lines"),
        ('["a\\nb", "c"]', ["a\nb", "c"], "JSON lines"),
        ('id,text\n1,"a, ""b""\nc"\n2,d\n', ['a, "b"\nc', "d"], "CSV"),
        ("text\tid\na\t1\nb\t2", ["a", "b"], "CSV"),
        ("{not json\n{at all", ["{not json", "{at all"], "lines"),
    ],
)
def test_pasted_items(tab: Tab, text: str, items: list[str], kind: str) -> None:
    tab.open()
    reported = call(tab, "lib/table.js", "m.parseItems(given)", text)
    assert reported == {"items": items, "from": kind}


def test_exported_tables_are_csv(tab: Tab) -> None:
    tab.open()
    rows = [["item", "a"], ['x, "y"\nz', "0.5"], ["=1+1", ""]]
    text = call(tab, "lib/table.js", "m.toCsv(given)", rows)
    assert list(csv.reader(io.StringIO(text, newline=""))) == rows


def test_metrics_are_read_as_they_are_written(tab: Tab, server: Server) -> None:
    tab.open()
    text = server.get("/metrics").text
    reported = call(
        tab,
        "lib/prom.js",
        "[...m.parse(given)].flatMap(([name, all]) =>"
        " all.map(({labels, value}) => [name, labels, value]))",
        text,
    )
    families = text_string_to_metric_families(text)
    wanted = [sample for family in families for sample in family.samples]
    assert len(reported) == len(wanted) > 300
    values = {(name, json.dumps(labels, sort_keys=True)): value for name, labels, value in reported}
    for sample in wanted:
        assert values[sample.name, json.dumps(sample.labels, sort_keys=True)] == sample.value
    median = call(
        tab,
        "lib/prom.js",
        "m.quantile({bounds: [1, 2, 4, Infinity], counts: [2, 2, 4, 2], sum: 0}, given)",
        0.5,
    )
    assert median == pytest.approx(2.5)  # the fifth of ten is the first of four from 2 to 4


def test_objects_keep_their_order_where_keys_are_digits(tab: Tab) -> None:
    """A token's text may be "12", which JavaScript would move to the front of an object."""
    tab.open()
    text = json.dumps({"top": {"x": 1, "12": 2, "0": 3}, "text": 'a "5": b', "9": "\\"})
    reported = call(
        tab,
        "lib/api.js",
        "(() => { const p = m.parseJson(given);"
        " return [Object.keys(p.top).map(m.plainKey), p.text]; })()",
        text,
    )
    assert reported == [["x", "12", "0"], 'a "5": b']
