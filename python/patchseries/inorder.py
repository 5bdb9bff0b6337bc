"""What several runs say at the same time, told in their order."""

from __future__ import annotations

import threading
from collections.abc import Callable


class InOrder:
    """Passes on at once what the first unfinished run says, and the others' lines when it ends."""

    def __init__(self, count: int, say: Callable[[str], None]) -> None:
        self._say = say
        self._kept: list[list[str]] = [[] for _ in range(count)]
        self._ended = [False] * count
        self._first = 0
        self._lock = threading.Lock()

    def of(self, number: int) -> Callable[[str], None]:
        """What a run, numbered from 0, speaks with."""

        def say(line: str) -> None:
            with self._lock:
                if number == self._first:
                    self._say(line)
                else:
                    self._kept[number].append(line)

        return say

    def end(self, number: int) -> None:
        """The run says no more."""
        with self._lock:
            self._ended[number] = True
            while self._first < len(self._ended) and self._ended[self._first]:
                self._first += 1
                if self._first < len(self._ended):
                    for line in self._kept[self._first]:
                        self._say(line)
                    self._kept[self._first].clear()
