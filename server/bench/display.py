"""The pass that is under way, as a bar on a terminal."""

from __future__ import annotations

import sys
import threading
from time import monotonic
from typing import Any

from tqdm import tqdm

from server.bench.load import LoadProgress

_LAYOUT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


class LiveDisplay:
    """A bar on standard error that is gone once its pass has ended; none where that is no terminal.

    It shows requests that ended, tokens a second since the last look, and requests that failed.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._title = ""
        self._seen = (0.0, 0)

    def __call__(self, title: str, progress: LoadProgress, total: int) -> None:
        """Show how far a pass is, as `measure.OnProgress`."""
        if not sys.stderr.isatty():
            return
        if title != self._title:
            self.close()
            self._title, self._seen = title, (monotonic(), 0)
            self._bar = _new_bar(title, total)
        then, tokens = self._seen
        now = monotonic()
        if now - then >= 0.2:
            rate = max(0, progress.tokens - tokens) / (now - then)
            failed = f", {progress.failed} failed" if progress.failed else ""
            self._bar.set_postfix_str(f"{rate:,.0f} tokens/s{failed}", refresh=False)
            self._seen = (now, progress.tokens)
        self._bar.n = progress.done
        self._bar.refresh()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar, self._title = None, ""


def _new_bar(title: str, total: int) -> Any:
    # Tqdm's own lock is one of several processes, which would be reported as a leak at the end.
    tqdm.set_lock(threading.RLock())
    tqdm.monitor_interval = 0  # no thread
    return tqdm(desc=title, total=total, bar_format=_LAYOUT, leave=False, file=sys.stderr)
