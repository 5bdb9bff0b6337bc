"""Hold HiCache's copies back in a test, and release them in any order.

    with sglang_cpu.transfers.hold() as held:
        cache.insert(...)                # starts a backup: no byte has moved yet
        assert not cache.cache_controller.ack_write_queue[0].finish_event.query()
        first, second = held.pending
        second.release()                 # its bytes move now, its events are complete
        first.release()
    cache.writing_check()

Between the issue and the release of a transfer

- its bytes have not moved: what overwrites or frees a slot too early shows up as wrong bytes;
- the events recorded behind its copies answer ``query()`` with False, so HiCache leaves the
  acknowledgement in its queue. HiCache stops at the first acknowledgement that is not ready
  (``_count_ready_acks``), so a later one that is released earlier is handled once all before it
  are ready;
- the indices of a `direct` copy were read when it was issued, those of a `kernel` copy are read at
  the release, as with the real ones.

Whoever waits gets what they wait for: ``Event.synchronize()``, ``Stream.synchronize()``, a
``synchronize()`` of the device, and a wait of the default stream (the forward pass waiting for a
layer) release the transfer in question first. Anything else would hang for ever: there is nobody
else who could release it. HiCache does so in ``writing_check(write_back=True)``. It does not wait
for a layer counter: with three loads held, a fourth fails its assertion, as it would on a GPU.

At the end of the block all that is still held is released, in the order of its issue. Not for use
with a GPU, where the real streams decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sglang_cpu import streams
from sglang_cpu.install import installed


class HeldTransfer:
    """One held batch of copies, from one ``with stream(...)`` block of HiCache."""

    def __init__(self, transfer: streams.Transfer) -> None:
        self._transfer = transfer

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its copies, in their order; see `sglang_cpu.kinds.KINDS`."""
        return tuple(self._transfer.kinds)

    @property
    def is_backup(self) -> bool:
        """Whether all its copies go from the device to the host."""
        kinds = self.kinds
        return bool(kinds) and all(kind.endswith("_backup") for kind in kinds)

    @property
    def is_load(self) -> bool:
        """Whether all its copies go from the host to the device."""
        kinds = self.kinds
        return bool(kinds) and all(kind.endswith("_load") for kind in kinds)

    @property
    def released(self) -> bool:
        """Whether its bytes have moved."""
        return self._transfer.done

    def release(self) -> None:
        """Move the bytes and complete the events; nothing the second time."""
        self._transfer.run()


class Held:
    """The transfers that were issued since `hold` began."""

    def __init__(self) -> None:
        self._all: list[HeldTransfer] = []

    @property
    def pending(self) -> tuple[HeldTransfer, ...]:
        """What is still held, in the order of its issue."""
        return tuple(held for held in self._all if not held.released)

    def release_all(self) -> None:
        """Release all that is held, in the order of its issue."""
        self.run_all()

    def add(self, transfer: streams.Transfer) -> None:
        """Take note of a transfer; called by `sglang_cpu.streams`."""
        self._all.append(HeldTransfer(transfer))

    def run_all(self, stream: streams.Stream | None = None) -> None:
        """Release what is held, of all streams or of one; called by `sglang_cpu.streams`."""
        for held in self._all:
            if stream is None or held._transfer.stream is stream:
                held.release()

    def newest(self, stream: streams.Stream) -> streams.Transfer | None:
        """What was issued last of what is held of one stream; called by `sglang_cpu.streams`."""
        for held in reversed(self.pending):
            if held._transfer.stream is stream:
                return held._transfer
        return None


@contextmanager
def hold() -> Iterator[Held]:
    """Hold every copy that HiCache issues in the block.

    Raises:
        RuntimeError: inside another `hold`, or where sglang_cpu is not in charge (a GPU is
            present, or neither the server plugin nor the pytest plugin is loaded): the copies
            would not be held.
    """
    if not installed():
        raise RuntimeError(
            "transfers can be held only where sglang_cpu makes the copies: no GPU, and pytest run "
            "with -p sglang_cpu.pytest_plugin"
        )
    held = Held()
    before = streams.set_holder(held)
    if before is not None:
        streams.set_holder(before)
        raise RuntimeError("transfers are being held already; hold() cannot be nested")
    try:
        yield held
    finally:
        streams.set_holder(None)
        held.run_all()
