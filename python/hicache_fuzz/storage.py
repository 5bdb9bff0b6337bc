"""The file storage backend of a cache under test, in a folder of its own.

Its threads run beside the test, so each operation waits until they have nothing left to do: a run
with the same operations is then the same run.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

_PATIENCE = 60.0
"""Seconds after which a thread that should do something is given up."""


@contextmanager
def switched_on(module: Any, stack: ExitStack) -> Iterator[None]:
    """Let the harness, made in the block, have the file backend.

    Args:
        module: the harness.
        stack: removes the folder when it is closed.
    """
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="hicache-fuzz-", ignore_cleanup_errors=True)
    )
    arguments = functools.partial(
        module.ServerArgs,
        hicache_storage_backend="file",
        hicache_storage_prefetch_policy="wait_complete",
        hicache_storage_backend_extra_config=json.dumps({"prefetch_threshold": 1}),
    )
    environ = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(Path(folder))}
    one_rank = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}
    with (
        mock.patch.dict(os.environ, environ),
        mock.patch.object(module, "ServerArgs", arguments),
        importlib.import_module("sglang.srt.runtime_context").get_parallel().override(**one_rank),
    ):
        yield


class Storage:
    """What storage is asked to do, on the cache of one harness."""

    def __init__(self, harness: Any) -> None:
        self._harness = harness
        self._cache = harness.cache
        self._controller = harness.controller
        self._prefetches = 0

    def quiet(self) -> None:
        """Wait until every backup to storage that was asked for is done, and acknowledge it.

        Until then the states that are written are locked on the host, and sglang's sanity_check
        takes such a state, if it is nowhere else, for one that is missing from the host's LRU list.
        """
        acks = self._controller.ack_backup_queue
        _wait(lambda: acks.qsize() >= len(self._cache.ongoing_backup), "a backup to storage")
        self._cache.drain_storage_control_queues()

    def prefetch(self, tokens: list[int], abort: bool) -> int:
        """Bring what storage holds of a prompt to the host, as for a request that waits.

        abort: the request is given up while the pages come. Returns the tokens that came.
        """
        cache, key = self._cache, array("q", tokens)
        matched = self._harness.match(tokens)
        anchor = matched.last_host_node
        if not (cache.is_backuped(anchor) or cache.is_root(anchor)):
            return 0
        self._prefetches += 1
        request = f"prefetch-{self._prefetches}"
        begin = len(matched.device_indices) + matched.host_hit_length
        cache.prefetch_from_storage(
            request, anchor, key[begin:], cache.get_last_hash_value(anchor), None
        )
        if abort:
            asked = request in cache.ongoing_prefetch
            cache.release_aborted_request(request)
            _wait(lambda: not asked or self._answered(), "a query of storage")
        else:
            _wait(lambda: self._progress(request), "a prefetch from storage")
        _wait(self._nothing_released, "the end of a prefetch")
        return int(cache.pop_prefetch_loaded_tokens(request))

    def _answered(self) -> bool:
        """Whether the thread has found out how much of a prompt there is."""
        controller = self._controller
        return bool(
            controller.prefetch_hit_queue.qsize() + controller.prefetch_revoke_queue.qsize()
        )

    def _progress(self, request: str) -> bool:
        self._harness.poll()
        return bool(self._cache.check_prefetch_progress(request))

    def _nothing_released(self) -> bool:
        """Whether the host slots that prefetches gave up are free again."""
        self._harness.poll()
        controller = self._controller
        released = controller.extra_host_mem_release_queues.values()
        return not any(q.qsize() for q in (controller.host_mem_release_queue, *released))

    def stop(self) -> None:
        """End the threads, which else see only after a second that they are to end."""
        controller = self._controller
        controller.storage_stop_event.set()
        for queue, thread in (
            (controller.prefetch_queue, controller.prefetch_thread),
            (controller.backup_queue, controller.backup_thread),
            (controller.prefetch_buffer, controller.prefetch_io_aux_thread),
        ):
            queue.put(None)
            thread.join()


def _wait(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"{what} has not come to an end within {_PATIENCE:g} s")
        time.sleep(0.001)
