"""Streams and events of a device that computes on the host.

They follow the rules of `torch.cuda.Stream` and `torch.cuda.Event`
(https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-streams), as far as HiCache uses them:

- a copy goes to the stream that is current where it is issued;
- an event completes once all that was given to its stream before the event has run;
- an event that was never recorded is complete.

Unless `sglang_cpu.transfers.hold` is active, a copy runs at once and an event is complete as soon
as it is recorded. While it is active, everything given to a stream inside one ``with stream(s):``
block is one `Transfer`, which runs when it is released. HiCache's controllers open one such block
for each batch of copies (``start_writing``, ``start_loading``), so one transfer is one
acknowledgement.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

Step = Callable[[], None]


class Stream:
    """An ordered queue of work. Arguments are accepted for compatibility and ignored."""

    def __init__(self, device: object = None, priority: int = 0) -> None:
        self.device = device
        self.priority = priority
        self.open: Transfer | None = None
        """What the next step given to this stream joins, if that transfer is still held."""
        self.waits: list[Step] = []
        """What the next transfer of this stream begins with."""

    def wait_event(self, event: Event) -> None:
        """Let what is given to this stream from now on run after `event`.

        The host computes in place of the default stream, so that one waits here and now.
        """
        if event.query():
            return
        if self is _default:
            event.synchronize()
        elif self.open is not None and not self.open.done:
            self.open.steps.append(event.synchronize)
        else:
            self.waits.append(event.synchronize)

    def wait_stream(self, other: Stream) -> None:
        """Let what is given to this stream from now on run after what `other` has been given."""
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, on this stream, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Run all that is held on this stream."""
        if _holder is not None:
            _holder.run_all(self)

    def query(self) -> bool:
        """Whether nothing is held on this stream."""
        return _holder is None or _holder.newest(self) is None


class Event:
    """A mark in a stream. Arguments are accepted for compatibility; time is always kept."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self._transfer: Transfer | None = None
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Set the mark after all that `stream` (default: the current one) has been given."""
        stream = stream or current_stream()
        transfer: Transfer | None = None
        if stream is current_stream() is not _default:
            transfer = _open_transfer(stream)
        elif _holder is not None:
            transfer = _holder.newest(stream)
        self._transfer, self._seconds = transfer, None
        if transfer is None:
            self._complete()
        else:
            transfer.steps.append(lambda: self._complete_from(transfer))

    def _complete(self) -> None:
        self._transfer, self._seconds = None, time.perf_counter()

    def _complete_from(self, transfer: Transfer) -> None:
        if self._transfer is transfer:  # not recorded anew since
            self._complete()

    def query(self) -> bool:
        """Whether all before the mark has run."""
        return self._transfer is None

    def synchronize(self) -> None:
        """Wait until all before the mark has run: a held transfer is released by this."""
        if self._transfer is not None:
            self._transfer.run()

    def wait(self, stream: Stream | None = None) -> None:
        """Let `stream` (default: the current one) go on only after the mark."""
        (stream or current_stream()).wait_event(self)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this mark to `end_event`.

        Raises:
            RuntimeError: one of the two is not recorded, or not complete.
        """
        if self._seconds is None or end_event._seconds is None:
            raise RuntimeError("elapsed_time: both events must be recorded and complete")
        return (end_event._seconds - self._seconds) * 1e3


class Transfer:
    """Steps of one stream that wait for their release: copies, marks of events, waits."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.steps: list[Step] = []
        self.kinds: list[str] = []
        self.done = False

    def run(self) -> None:
        """Run the steps in their order, once."""
        if self.done:
            return
        self.done = True  # first: what failed half-way is not begun again at the end of a hold
        for step in self.steps:
            step()
        self.steps.clear()


class Holder(Protocol):
    """What decides that work is held; `sglang_cpu.transfers.Held` is the one implementation."""

    def add(self, transfer: Transfer) -> None:
        """Take note of a transfer that has just been started."""

    def run_all(self, stream: Stream | None = None) -> None:
        """Run what is held, all of it or that of one stream, in the order of its issue."""

    def newest(self, stream: Stream) -> Transfer | None:
        """The transfer of `stream` that was issued last of those that are still held, if any."""


_holder: Holder | None = None
_default = Stream()
_local = threading.local()


def set_holder(holder: Holder | None) -> Holder | None:
    """Let `holder` decide from now on (None: nothing is held); return the one before."""
    global _holder
    before, _holder = _holder, holder
    return before


def default_stream(device: object = None) -> Stream:
    """The stream that stands for the host's own work."""
    return _default


def current_stream(device: object = None) -> Stream:
    """The stream of the innermost ``with stream(...)`` block of this thread, or the default one."""
    current: Stream = getattr(_local, "stream", _default)
    return current


@contextmanager
def stream(selected: Stream | None) -> Iterator[None]:
    """Make `selected` current in the block; None changes nothing."""
    if selected is None:
        yield
        return
    before = current_stream()
    _local.stream = selected
    try:
        yield
    finally:
        _local.stream, selected.open = before, None


def synchronize(device: object = None) -> None:
    """Run all that is held on any stream."""
    if _holder is not None:
        _holder.run_all()


def submit(copy: Step, kind: str = "") -> None:
    """Give a copy to the current stream: it runs now, or with its transfer if that is held.

    Outside of any ``with stream(...)`` block each held copy is a transfer of its own.
    """
    selected = current_stream()
    if selected is _default:
        selected.open = None
    transfer = _open_transfer(selected)
    if transfer is None:
        copy()
        return
    transfer.steps.append(copy)
    transfer.kinds.append(kind)


def _open_transfer(selected: Stream) -> Transfer | None:
    """What the next step on this stream joins; None: it runs now."""
    if _holder is None:
        return None
    if selected.open is None or selected.open.done:
        selected.open = Transfer(selected)
        selected.open.steps += selected.waits
        selected.waits.clear()
        _holder.add(selected.open)
    return selected.open
