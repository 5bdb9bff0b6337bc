"""The operations, as a state machine of hypothesis.

Each operation is a method with plain arguments, so that a failing run can be printed, and typed
again. After each, the tree's own check, the accounts of every pool, every byte and the rule of
`watch` must hold.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hicache_fuzz import api, contents, slots, watch
from hicache_fuzz.configs import Config
from hicache_fuzz.engine import Engine, Pools, Request

PATH = st.lists(st.tuples(st.integers(0, 1), st.sampled_from([2, 1])), min_size=1, max_size=3)
"""Few branches of few lengths, so that paths meet, split and return."""

COUNT = st.sampled_from([1, 2, 4, 64])
"""What is evicted; the last is more than there is."""

WHICH = st.integers(0, 3)
"""One of several, counted round and round."""


def operation(method: Callable[..., None]) -> Callable[..., None]:
    """Check everything after the method; after a failure, the end checks nothing."""

    @functools.wraps(method)
    def checked(self: CacheMachine, **arguments: Any) -> None:
        self.tally["operations"] += 1
        self.tally[f"operation {method.__name__}"] += 1
        try:
            self.watch.before()
            method(self, **arguments)
            if self.engine.storage:
                self.engine.storage.quiet()
            self.check()
        except BaseException:
            self.failed = True
            raise

    return checked


class CacheMachine(RuleBasedStateMachine):
    """One cache and what is done to it. `machine_for` makes one of a configuration."""

    config: ClassVar[Config]
    keeps_states: ClassVar[bool]
    """Whether the rule of `watch` is asked for."""
    loses_acks: ClassVar[bool]
    """Whether acknowledgements are lost and repeated; as released, that ends in a KeyError."""
    tally: ClassVar[Counter[str]]
    """Counts operations, and what came of them."""

    engine: Engine
    watch: watch.Watch

    def __init__(self) -> None:
        super().__init__()
        self.failed = False
        self.acks: list[Any] = []
        self.prompts: list[list[int]] = []

    @initialize(
        requests=st.integers(1, 3),
        spare_states=st.sampled_from([3, 0, 1, 6]),
        pages=st.sampled_from([48, 32, 24]),
        host_ratio=st.sampled_from([2.0, 0.25, 0.5]),
        held=st.booleans(),
        states_per_path=st.sampled_from([-1, 1, -1, 2]),
    )
    def pools(
        self,
        *,
        requests: int,
        spare_states: int,
        pages: int,
        host_ratio: float,
        held: bool,
        states_per_path: int = -1,
    ) -> None:
        """Make the cache; nothing else can be done before. held: see `hold`."""
        pools = Pools(requests, spare_states, pages, host_ratio, states_per_path)
        self.engine = Engine(self.config, pools, self.tally)
        self.watch = watch.Watch(self.engine)
        contents.poison(self.engine)
        self._remember_acks()
        if held:
            self.engine.hold()

    def _remember_acks(self) -> None:
        controller, issue = self.engine.controller, self.engine.controller.start_writing

        def start_writing() -> None:
            issue()
            self.acks += [ack for ack in controller.ack_write_queue if ack not in self.acks]

        controller.start_writing = start_writing

    # Requests

    @rule(path=PATH, chunked=st.booleans())
    @operation
    def insert(self, path: list[tuple[int, int]], chunked: bool) -> None:
        """Insert KV and a state without a request."""
        tokens = self.engine.tokens(path)
        self.prompts.append(tokens)
        self.engine.insert(tokens, chunked)

    @rule(path=PATH, tail=st.integers(0, 2), chunk=st.integers(1, 8))
    @operation
    def serve(self, path: list[tuple[int, int]], tail: int, chunk: int) -> None:
        """Serve a request from its admission to its end, in chunks of so many pages."""
        request = self._begin(path, tail)
        while request and len(request.tokens) - len(request.req.prefix_indices) > (
            chunk * self.config.page
        ):
            if not self.engine.compute(request, chunk):
                break
        if request and not self.engine.finish(request):
            self.engine.abort(request)

    @rule(path=PATH, tail=st.integers(0, 2))
    @operation
    def begin(self, path: list[tuple[int, int]], tail: int) -> None:
        """Admit a request, which stays."""
        self._begin(path, tail)

    def _begin(self, path: list[tuple[int, int]], tail: int) -> Request | None:
        """A request that reuses all it can; what is only on the host may find no room."""
        engine, tokens = self.engine, self.engine.tokens(path, tail)
        self.prompts.append(tokens)
        if not engine.admits(tokens):
            return None
        wanted = watch.expected(engine, tokens[:-1])  # the last token is always computed
        request = engine.begin(tokens)
        cached = request.cached
        # Without a state of its own to go on from, a device prefix is of no use either.
        called_off = wanted.all > wanted.device and cached in (0, wanted.device)
        assert cached == wanted.all or called_off, (
            f"a request of {len(tokens)} tokens reuses {cached}, expected {wanted}"
        )
        tier = "device" if cached == wanted.device else "host"
        self.tally[f"requests that reuse {f'from the {tier}' if cached else 'nothing'}"] += 1
        self.tally["requests whose load was called off"] += cached < wanted.all
        return request

    @precondition(lambda self: self.engine.requests)
    @rule(which=WHICH, pages=st.integers(1, 6))
    @operation
    def compute(self, which: int, pages: int) -> None:
        """Compute the next pages of a request, and cache it unfinished."""
        self.engine.compute(_pick(self.engine.requests, which), pages)

    @precondition(lambda self: self.engine.requests)
    @rule(which=WHICH)
    @operation
    def finish(self, which: int) -> None:
        """Compute the rest of a request, and finish it."""
        self.engine.finish(_pick(self.engine.requests, which))

    @precondition(lambda self: self.engine.requests)
    @rule(which=WHICH)
    @operation
    def abort(self, which: int) -> None:
        """End a request, caching nothing more of it."""
        self.engine.abort(_pick(self.engine.requests, which))

    # Matching and loading

    @rule(path=PATH)
    @operation
    def match(self, path: list[tuple[int, int]]) -> None:
        """Match a prompt, which may split a node; it must find what the tree holds."""
        engine, tokens = self.engine, self.engine.tokens(path)
        wanted = watch.expected(engine, tokens)
        matched = engine.harness.match(tokens)
        best = engine.core.node_by_id(matched.best_match_node)
        found = watch.Found(len(matched.device_indices), len(contents.path_tokens(best)))
        assert found == wanted, f"a match of {len(tokens)} tokens found {found}, expected {wanted}"

    @precondition(lambda self: self._on_host_alone())
    @rule(which=WHICH)
    @operation
    def load_back(self, which: int) -> None:
        """Bring a state that only the host holds, and the KV before it, to the device."""
        node = _pick(self._on_host_alone(), which)
        self.engine.load_back(contents.path_tokens(node))

    def _on_host_alone(self) -> list[Any]:
        states = (
            (node, node.component_data[self.engine.api.MAMBA]) for node in self.engine.nodes()
        )
        return [node for node, data in states if data.value is None and data.host_value is not None]

    # Eviction

    @rule(component=st.sampled_from(["mamba", "full", "swa"]), count=COUNT)
    @operation
    def evict(self, component: str, count: int) -> None:
        """Evict from the device: so many states, or pages of KV."""
        keyword = {"full": "num_tokens", "swa": "swa_num_tokens", "mamba": "mamba_num"}[component]
        wanted = {"num_tokens": 0, keyword: self._slots(component, count)}
        self.engine.cache.evict(self.engine.api.EvictParams(**wanted))

    @rule(component=st.sampled_from(["mamba", "full", "swa"]), count=COUNT)
    @operation
    def evict_host(self, component: str, count: int) -> None:
        """Evict from the host: so many states, or pages of KV."""
        wanted = self._slots(component, count)
        self.engine.cache.evict_host(wanted, self.engine.types[component])

    def _slots(self, component: str, count: int) -> int:
        return count if component == "mamba" else count * self.config.page

    # Transfers and acknowledgements

    @rule()
    @operation
    def poll(self) -> None:
        """Take the acknowledgements that have come."""
        self.engine.harness.poll()

    @rule(held=st.booleans())
    @operation
    def hold(self, held: bool) -> None:
        """Keep transfers in flight from now on; or let all finish, and none be kept."""
        if held:
            self.engine.hold()
        else:
            self.engine.end_hold()

    @precondition(lambda self: self.engine.pending)
    @rule(which=WHICH)
    @operation
    def release(self, which: int) -> None:
        """Let one of the transfers in flight finish."""
        _pick(self.engine.pending, which).release()

    @precondition(lambda self: self.loses_acks and self._acks_to_lose())
    @rule(which=WHICH)
    @operation
    def lose_ack(self, which: int) -> None:
        """Let the acknowledgement of a backup, whose bytes have moved, never come."""
        self.engine.controller.ack_write_queue.remove(_pick(self._acks_to_lose(), which))
        self.engine.lost_acks += 1

    def _acks_to_lose(self) -> list[Any]:
        queue = self.engine.controller.ack_write_queue
        return [ack for ack in queue if ack.finish_event.query()]

    @precondition(lambda self: self.loses_acks and self._acks_to_repeat())
    @rule(which=WHICH)
    @operation
    def repeat_ack(self, which: int) -> None:
        """Let the acknowledgement of a backup come once more, before those that wait."""
        ack = _pick(self._acks_to_repeat(), which)
        self.engine.controller.ack_write_queue.insert(0, ack)
        self.engine.harness.poll()

    def _acks_to_repeat(self) -> list[Any]:
        """Those that say nothing of a later transfer: ids are used again once they are free."""
        queue = self.engine.controller.ack_write_queue
        ongoing = self.engine.cache.ongoing_write_through
        return [a for a in self.acks if a in queue[:1] or not ongoing.keys() & a.node_ids]

    @precondition(lambda self: self.config.storage and self.prompts)
    @rule(which=WHICH, abort=st.booleans(), restart=st.booleans())
    @operation
    def prefetch(self, which: int, abort: bool, restart: bool) -> None:
        """Bring what storage holds of one of the latest prompts to the host, or begin to and give
        up; restart: when the cache has just been emptied.
        """
        if restart:
            self._settle()
            self._flush()
        storage = self.engine.storage
        assert storage is not None
        came = storage.prefetch(_pick(self.prompts[::-1], which), abort)
        self.tally["prefetches from storage" if came else "prefetches of nothing"] += 1

    # What a server does now and then

    @rule(what=st.sampled_from(["settle", "flush", "attach storage", "detach storage"]))
    @operation
    def tend(self, what: str) -> None:
        """Let everything finish, empty the cache, or ask for another storage backend."""
        done: dict[str, Callable[[], None]] = {
            "settle": self._settle,
            "flush": self._flush,
            "attach storage": lambda: self._refused("attach_storage_backend", "file"),
            "detach storage": lambda: self._refused("detach_storage_backend"),
        }
        done[what]()

    def _settle(self) -> None:
        """Let every transfer finish and poll; nothing owed may be left."""
        self.engine.settle()
        if self.keeps_states:
            self.watch.settled()

    def _flush(self) -> None:
        """Empty the cache; the scheduler does not while there are requests."""
        if self.engine.requests:
            return
        self.engine.flush()
        self.acks.clear()
        self.watch.forget()
        slots.check_empty(self.engine)

    def _refused(self, method: str, *arguments: str) -> None:
        """This release attaches and detaches no storage at run time; nothing may change."""
        before = self._everything()
        done, message = getattr(self.engine.cache, method)(*arguments)
        assert not done, message
        assert self._everything() == before, f"{method} was refused, and changed something"

    def _everything(self) -> list[Any]:
        """Whether storage is on, and every node with its slots and locks."""
        found: list[Any] = [self.engine.cache.enable_storage]
        for node in self.engine.nodes():
            for name in self.config.components:
                data = node.component_data[self.engine.types[name]]
                held = [None if x is None else x.tolist() for x in (data.value, data.host_value)]
                found.append((node.id, name, held, data.lock_ref, data.host_lock_ref))
        return found

    # Checks

    def check(self) -> None:
        """What must hold after every operation."""
        self.engine.cache.sanity_check()
        slots.check(self.engine)
        contents.check(self.engine)
        contents.poison(self.engine)
        if self.keeps_states:
            self.watch.after()

    def teardown(self) -> None:
        """End the requests and transfers; then all locks are gone, and all slots can be freed."""
        engine: Engine | None = getattr(self, "engine", None)
        if engine is None:
            return
        try:
            if not self.failed:
                self._end()
        finally:
            engine.close()

    def _end(self) -> None:
        engine = self.engine
        while engine.requests:
            engine.abort(engine.requests[0])
        self._settle()
        if not engine.lost_acks:
            slots.check_unlocked(engine)
            engine.harness.evict_all()
            engine.settle()
            engine.harness.evict_all()
            slots.check_empty(engine)
        engine.flush()
        slots.check_empty(engine)


def _pick(of: Any, which: int) -> Any:
    return of[which % len(of)]


def machine_for(
    config: Config, keeps_states: bool, tally: Counter[str] | None = None
) -> type[CacheMachine]:
    """The machine of a configuration.

    Args:
        config: how the cache is set up.
        keeps_states: whether no state may be lost; not so in trees without the group `extended`.
        tally: counts operations and what came of them, over all runs.
    """
    counted: Counter[str] = Counter() if tally is None else tally
    members = {
        "config": config,
        "keeps_states": keeps_states,
        "loses_acks": api.waits_for_transfers(),
        "tally": counted,
    }
    return type("CacheMachine", (CacheMachine,), members)
