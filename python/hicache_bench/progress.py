"""Progress on standard error: bars on a terminal, a line at each change of phase elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Reporter:
    """Shows what each job of a run is doing; a context manager, safe to use from threads."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._phases: dict[str, str] = {}
        self._tasks: dict[str, TaskID] = {}
        self._bars: Progress | None = None
        if self._console.is_terminal:
            self._bars = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[phase]}"),
                TimeElapsedColumn(),
                console=self._console,
            )

    def __enter__(self) -> Reporter:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars:
            self._bars.stop()

    def say(self, text: str) -> None:
        """One line that stays, with the seconds since the start."""
        with self._lock:
            self._say(text)

    def step(self, job: str, phase: str, done: int = 0, total: int | None = None) -> None:
        """`job` is in `phase`, with `done` of `total` requests answered (None: no number yet)."""
        with self._lock:
            if self._bars:
                if job not in self._tasks:
                    self._tasks[job] = self._bars.add_task(job, phase=phase, total=total)
                self._bars.update(self._tasks[job], phase=phase, completed=done, total=total)
            elif self._phases.get(job) != phase:
                count = f" ({done} of {total} requests done)" if total and done < total else ""
                self._say(f"{job}: {phase}{count}")
            self._phases[job] = phase

    def _say(self, text: str) -> None:
        self._console.print(f"[{time.monotonic() - self._began:6.1f} s] {text}", markup=False)
