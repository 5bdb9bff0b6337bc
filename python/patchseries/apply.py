"""Do what was planned: every file or none, with a record from the first moment to the last."""

from __future__ import annotations

import dataclasses

from patchseries import bytecode, diff, files
from patchseries import state as states
from patchseries.errors import PatchSeriesError
from patchseries.plan import Plan
from patchseries.state import Phase, State


def execute(plan: Plan) -> None:
    """Do what was planned, or leave everything as it was.

    Raises PatchSeriesError when a file cannot be written; what was renamed is then put back.
    """
    if plan.changes_nothing:
        return
    named = plan.target.named
    try:
        files.clean([*map(plan.target.path, plan.touched), plan.target.record])
        _change_all(plan)
    except files.RollbackFailedError as error:
        raise _not_written(
            plan, error, "and could not put back what was changed", f"reverse '{named}'"
        ) from error
    except OSError as error:
        raise _not_written(plan, error, "every file is as it was", f"status '{named}'") from error
    try:
        if plan.state is None:
            files.clean(map(plan.target.path, plan.touched))
            _remove_made(plan)
            states.remove(plan.target.record)
    except OSError as error:
        raise _not_written(
            plan, error, "every file is as released, but not all is tidied up", f"reverse '{named}'"
        ) from error


def _not_written(plan: Plan, error: OSError, but: str, command: str) -> PatchSeriesError:
    return PatchSeriesError(
        f"could not write: {error.strerror}; {but}",
        where=error.filename or plan.target.package,
        expected="room on the disk, and files and folders that this user may change",
        command=f"python -m patchseries {command}, when that is mended",
    )


def _change_all(plan: Plan) -> None:
    record = plan.target.record
    changing = [write.path for write in plan.writes]
    try:
        if plan.writes:
            states.write(record, _journal(plan))
        with files.Transaction(plan.writes) as transaction:
            bytecode.remove(changing)
            transaction.commit()
            if plan.state is not None:
                states.write(record, plan.state)
        bytecode.sweep(changing)
    except files.RollbackFailedError:
        raise  # the journal stays: it is what the next command works from
    except BaseException:
        states.restore(record, plan.previous)
        raise


def _journal(plan: Plan) -> State:
    """What is recorded while files are renamed, for the next command if this one is killed."""
    if plan.state is not None:
        before = plan.previous.tests if plan.previous else {}
        tests = {
            name: tuple(dict.fromkeys((*plan.state.tests.get(name, ()), *before.get(name, ()))))
            for name in sorted({*plan.state.tests, *before})
        }
        return dataclasses.replace(plan.state, phase=Phase.APPLYING, tests=tests)
    assert plan.previous is not None
    return dataclasses.replace(plan.previous, phase=Phase.REVERSING)


def _remove_made(plan: Plan) -> None:
    """Remove the folders that apply made, and the byte code of the modules that it added."""
    record, target = plan.previous, plan.target
    if record is None:
        return
    added = [path for path, before in record.before.items() if before == diff.ABSENT]
    bytecode.remove(target.path(path) for path in [*added, *record.tests])
    made = [target.path(folder) for folder in record.folders]
    files.remove_folders([*made, *(folder / "__pycache__" for folder in made)])
