"""Runs of the machine: rounds with a seed each, a failure's shortest script, and its replay."""

from __future__ import annotations

import ast
import contextlib
import io
import logging
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test

from hicache_fuzz.configs import Config
from hicache_fuzz.machine import CacheMachine, machine_for

RUN_STEPS = 50
"""Operations of one run, on one cache from its making to its end."""

ROUND_RUNS = 12
"""Runs of a round that is not cut short; their seed is the round's."""

SHRINKING_SECONDS = 60
"""How long hypothesis may look for a simpler run; `_shorten` goes on from what it has found."""

_SHOWN_FRAMES = 4


@dataclass(frozen=True)
class Failure:
    """What went wrong. script: the shortest list of operations that was found to show it, a call of
    a method of ``state`` each. trace: the last lines of code, innermost last.
    """

    config: Config
    seed: int
    error: str
    script: tuple[str, ...]
    trace: tuple[str, ...]


def run(
    config: Config, seed_: int, *, runs: int, keeps_states: bool, tally: Counter[str]
) -> Failure | None:
    """Run one round; the same arguments give the same round.

    Args:
        config: how the cache is set up.
        seed_: of hypothesis.
        runs: how many, of up to `RUN_STEPS` operations each.
        keeps_states: see `machine.machine_for`.
        tally: counts what happened; see `steps_in`.
    """
    engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS  # no setting of hypothesis says it
    machine = seed(seed_)(machine_for(config, keeps_states, tally))
    chosen = settings(
        max_examples=runs,
        stateful_step_count=RUN_STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    try:
        with quiet():
            run_state_machine_as_test(machine, settings=chosen)
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        script = tuple(line for line in notes.split("\n") if line.startswith("state."))
        return _shorten(_failure(config, seed_, error, script), keeps_states)
    return None


def steps_in(tally: Counter[str]) -> int:
    """How many operations a tally has counted."""
    return tally["operations"]


def parse(line: str) -> tuple[str, dict[str, Any]]:
    """The name of an operation and its arguments, from a line of a script.

    Raises:
        ValueError: the line is no call of an operation with plain arguments.
    """
    try:
        call = ast.parse(line, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        assert not call.args and hasattr(CacheMachine, call.func.attr)
        given = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (AssertionError, SyntaxError, ValueError) as error:
        raise ValueError(
            f"{line!r} is no operation; expected a line such as state.poll() or "
            "state.evict(component='mamba', count=1), as a failing run prints it"
        ) from error
    # `replay` ends a run in any case.
    return ("check", {}) if call.func.attr == "teardown" else (call.func.attr, given)


def replay(config: Config, script: tuple[str, ...], keeps_states: bool) -> Failure | None:
    """Do the operations of a script, as they are.

    Raises:
        ValueError: a line is no call of an operation with plain arguments.
    """
    calls = [parse(line) for line in script]
    state = machine_for(config, keeps_states)()
    try:
        with quiet():
            try:
                for name, arguments in calls:
                    getattr(state, name)(**arguments)
            finally:
                state.teardown()
    except Exception as error:
        return _failure(config, 0, error, script)
    return None


def _shorten(failure: Failure, keeps_states: bool) -> Failure:
    """Leave out all lines without which the script fails in the same way."""
    size = len(failure.script) // 2
    while size:
        begin = 1  # the first makes the cache
        while begin < len(failure.script):
            rest = failure.script[:begin] + failure.script[begin + size :]
            found = replay(failure.config, rest, keeps_states)
            if found and _kind(found) == _kind(failure):
                failure = replace(found, seed=failure.seed)
            else:
                begin += size
        size //= 2
    return failure


def _kind(failure: Failure) -> str:
    """The error without its numbers."""
    return re.sub(r"\d+", "", failure.error)[:60]


def _failure(config: Config, seed_: int, error: Exception, script: tuple[str, ...]) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)[-_SHOWN_FRAMES:]
    trace = tuple(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    return Failure(config, seed_, f"{type(error).__name__}: {error}", script, trace)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep sglang from telling each of a thousand caches; a failed check prints the tree."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
