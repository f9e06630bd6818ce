"""Shows the progress of a map on standard error: as one line that is written over, on a terminal or in a notebook's
cell; as a plain line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time

from miniray import _core

_TERMINAL_S = _core.limits.map_progress_ms / 1000
_PLAIN_S = _core.limits.map_progress_line_ms / 1000
_BAR_WIDTH = _core.limits.progress_bar_chars
_COLUMNS_MAX: int = _core.limits.progress_columns_max


class Bar:
    def __init__(self, total: int | None, workers: int) -> None:
        self._total = total
        self._workers = workers
        self._done = self._failed = 0
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._closed = False
        self._terminal = _in_notebook() or _is_terminal()
        self._shown_at = self._begun if not self._terminal else 0.0
        self._width = 0

    def advance(self, done: int, failed: int) -> None:
        with self._lock:
            self._done += done
            self._failed += failed
            now = time.monotonic()
            if self._closed or now - self._shown_at < (_TERMINAL_S if self._terminal else _PLAIN_S):
                return
            self._shown_at = now
            self._show()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._show()
            if self._terminal:
                _write("\n")

    def _show(self) -> None:
        text = self._text()
        if not self._terminal:
            return _write(text + "\n")
        room = _columns() - 1  # some terminals wrap a line that fills the last column, and then it is not overwritten
        line = self._bar() + text
        if len(line) > room:
            line = text[:room]
        _write("\r" + line.ljust(min(self._width, room)))
        self._width = len(line)

    def _bar(self) -> str:
        if not self._total:
            return ""
        full = _BAR_WIDTH * (self._done + self._failed) // self._total
        return f"[{'#' * full}{'.' * (_BAR_WIDTH - full)}] "

    def _text(self) -> str:
        finished = self._done + self._failed
        elapsed = max(time.monotonic() - self._begun, 1e-9)
        rate = finished / elapsed
        parts = [f"{finished}/{self._total}" if self._total is not None else f"{finished} done"]
        left = self._total - finished if self._total is not None else None
        if left is None or left > 0:
            parts.append(f"{min(self._workers, left) if left is not None else self._workers} running")
        if self._failed:
            parts.append(f"{self._failed} failed")
        parts.append(f"{rate:.1f}/s" if rate < 1000 else f"{rate:,.0f}/s")
        if left:
            parts.append(f"{_duration(left / rate)} left" if rate > 0 else "? left")
        else:
            parts.append(f"in {_duration(elapsed)}")
        return ", ".join(parts)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def _in_notebook() -> bool:
    if "ipykernel" not in sys.modules:
        return False
    from miniray import _notebook

    return _notebook.kernel_shell() is not None


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def _columns() -> int:
    """Return the width of the terminal. A notebook breaks no line, so it gets a width that no text has."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _COLUMNS_MAX
    except (AttributeError, OSError, ValueError):
        return _COLUMNS_MAX


def _write(text: str) -> None:
    try:
        if _in_notebook():
            from miniray import _notebook

            return _notebook.write_errors(text)
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        pass  # there is no standard error that could show it
