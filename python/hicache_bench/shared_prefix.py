"""One run of a workload on one engine: cold runs, the requests that make the states, measured runs.

1. cold: p + c on an empty cache; its logprobs are the reference. Then the cache is emptied.
2. first: where the workload wants something on the host only, it is sent here, and a flood of
   unrelated prompts follows.
3. create: the requests that make a state at the end of p.
4. flood: what is only on the device is gone.
5. measure: p + c. A hit has at least the prefix cached.

That each flood did its work is observed, not assumed: a sentinel, a prompt sent right before the
flood, is asked for right after it, and must then come from the host alone. The caches go by least
recent use, so what was used before the sentinel has left the device too. One more sentinel, older
than every family, is asked for at the end: it must still be on the host, or the host pool was too
small and misses would mean nothing.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hicache_bench.client import Answer, BusyEngine
from hicache_bench.measurement import Family, Measurement, Probe, Step
from hicache_bench.workload import FIRST_ID, NEW_TOKENS, Shape, Sizes
from hicache_bench.workloads import Request, Workload

Progress = Callable[[str, int, int], None]
T = TypeVar("T")

MEASURED = Request("pc")


class Prompts:
    """Random prompts that share nothing: each begins with a token id that no other begins with."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._random = random.Random(seed)
        self._ids = range(FIRST_ID, vocab_size)
        self._first: Iterator[int] = iter(self._random.sample(self._ids, len(self._ids)))

    def unrelated(self, length: int) -> list[int]:
        """A prompt of `length` tokens."""
        return [next(self._first), *self._random.choices(self._ids, k=length - 1)]

    def family(self, shape: Shape) -> dict[str, list[int]]:
        """A prefix p and suffixes a, b, c that part at once, so that exactly p is shared."""
        prefix = self.unrelated(shape.prefix)
        firsts = self._random.sample(self._ids, 3)
        rests = [self._random.choices(self._ids, k=shape.suffix - 1) for _ in firsts]
        suffixes = [[first, *rest] for first, rest in zip(firsts, rests, strict=True)]
        return dict(zip("pabc", [prefix, *suffixes], strict=True))


class SharedPrefix:
    """One run of `workload` on one engine."""

    def __init__(
        self,
        engine: BusyEngine,
        workload: Workload,
        shape: Shape,
        sizes: Sizes,
        vocab_size: int,
        *,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        self._engine = engine
        self._workload = workload
        self._shape = shape
        self._sizes = sizes
        self._progress = progress
        self._prompts = Prompts(shape.seed, vocab_size)
        self._families = [self._prompts.family(shape) for _ in range(workload.families(shape))]
        self._counting = threading.Lock()
        self._done = 0
        self._total = self._requests()

    def run(self) -> Measurement:
        """Run all phases in order. Raises what the engine raises."""
        cold = self._cold()
        oldest = self._sentinel("warm")
        probes = []
        first: list[list[Step]] = [[] for _ in self._families]
        if self._workload.first:
            first = [self._first(family) for family in self._families]
            probes.append(self._probe("first flood", self._flooded("flood")))
        created = self._each(self._create)
        probes.append(self._probe("second flood", self._flooded("flood again")))
        measured = self._each(self._measure)
        probes.append(self._probe("host pool", oldest))
        families = [
            self._family(*parts) for parts in zip(cold, first, created, measured, strict=True)
        ]
        return Measurement(self._shape, self._sizes, tuple(families), tuple(probes))

    @property
    def _compared(self) -> tuple[Request, ...]:
        """Requests before the measured one that have a cold run too: where clients disturb each
        other, every answer is looked at.
        """
        return self._workload.create if self._workload.clients > 1 else ()

    def _cold(self) -> list[list[Answer]]:
        """For each family the answers to the measured and the compared prompts, from an empty
        cache.
        """
        answers: list[list[Answer]] = [[] for _ in self._families]
        for request in (MEASURED, *self._compared):
            self._engine.flush()  # the prompts of one family share their prefix
            for family, found in zip(self._families, answers, strict=True):
                found.append(self._send(self._engine, "cold", _ids(family, request), NEW_TOKENS))
        self._engine.flush()
        return answers

    def _first(self, family: dict[str, list[int]]) -> list[Step]:
        return [
            self._step(request, self._warm("warm", _ids(family, request)))
            for request in self._workload.first
        ]

    def _create(self, engine: BusyEngine, family: dict[str, list[int]]) -> list[Answer]:
        """Send what makes the state of one family."""
        requests = self._workload.create
        prompts = [_ids(family, request) for request in requests]
        if self._workload.together:
            # One new token each: they end where the prompt does, in the pass that computes it.
            answers = engine.generate_together(prompts, 1)
            self._count("create", len(answers))
            return answers
        new_tokens = NEW_TOKENS if self._compared else 1
        return [self._send(engine, "create", ids, new_tokens) for ids in prompts]

    def _measure(self, engine: BusyEngine, family: dict[str, list[int]]) -> Answer:
        return self._send(engine, "measure", _ids(family, MEASURED), NEW_TOKENS)

    def _family(
        self, cold: list[Answer], first: list[Step], created: list[Answer], measured: Answer
    ) -> Family:
        steps = [
            self._step(request, answer)
            for request, answer in zip(self._workload.create, created, strict=True)
        ]
        compared = tuple(zip(cold[1:], created, strict=True)) if self._compared else ()
        entered = {answer.entered for answer in created}
        one_pass = len(entered) == 1 and None not in entered if self._workload.together else None
        return Family(cold[0], (*first, *steps), measured, compared, one_pass)

    def _step(self, request: Request, answer: Answer) -> Step:
        free = self._workload.clients > 1
        return Step(request.what, answer.tiers, None if free else request.expected(self._shape))

    def _each(self, send: Callable[[BusyEngine, dict[str, list[int]]], T]) -> list[T]:
        """`send` for each family, in turn or by as many clients as the workload has."""
        if self._workload.clients == 1:
            return [send(self._engine, family) for family in self._families]

        connected = threading.Barrier(len(self._families))

        def client(family: dict[str, list[int]]) -> T:
            engine = self._engine.another()
            try:
                connected.wait()
                return send(engine, family)
            finally:
                engine.close()

        with ThreadPoolExecutor(self._workload.clients) as pool:
            return list(pool.map(client, self._families))

    def _send(
        self, engine: BusyEngine, phase: str, ids: Sequence[int], new_tokens: int = 1
    ) -> Answer:
        self._count(phase, 0)
        answer = engine.generate(ids, new_tokens)
        self._count(phase, 1)
        return answer

    def _count(self, phase: str, answered: int) -> None:
        with self._counting:
            self._done += answered
            self._progress(phase, self._done, self._total)

    def _warm(self, phase: str, ids: list[int]) -> Answer:
        """Send a prompt as often as the policy needs to back it up; the first answer counts."""
        first = self._send(self._engine, phase, ids)
        for _ in range(self._sizes.repeats - 1):
            self._send(self._engine, phase, ids)
        return first

    def _flooded(self, phase: str) -> list[int]:
        """A sentinel that a flood has followed."""
        sentinel = self._sentinel(phase)
        for _ in range(self._sizes.flood_prompts):
            self._send(self._engine, phase, self._prompts.unrelated(self._sizes.flood_length))
        return sentinel

    def _sentinel(self, phase: str) -> list[int]:
        ids = self._prompts.unrelated(self._sizes.sentinel)
        self._warm(phase, ids)
        return ids

    def _probe(self, name: str, sentinel: list[int]) -> Probe:
        # A whole prompt is never served from the cache, its last token is computed; hence a longer
        # one.
        ids = [*sentinel, *self._prompts.unrelated(4)]
        answer = self._send(self._engine, f"probe {name}", ids)
        return Probe(name, len(sentinel), answer.tiers)

    def _requests(self) -> int:
        sizes, floods = self._sizes, 2 if self._workload.first else 1
        each = 2 + 2 * len(self._compared) if self._compared else 2 + len(self._workload.create)
        each += len(self._workload.first) * sizes.repeats
        return (
            each * len(self._families)
            + floods * (sizes.repeats + sizes.flood_prompts + 1)
            + sizes.repeats
            + 1
        )


def _ids(family: dict[str, list[int]], request: Request) -> list[int]:
    return [token for part in request.parts for token in family[part]]
