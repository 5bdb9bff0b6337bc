"""What each command does and prints. Answers go to standard output, progress to standard error."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from patchseries import (
    apply,
    checkout,
    edit,
    export,
    installed,
    lint,
    localwheel,
    lock,
    pin,
    pinning,
    plan,
    runner,
    series,
    status,
    targets,
    trees,
    wheels,
)
from patchseries.errors import ExitCode, PatchSeriesError, as_typed
from patchseries.report import Condition
from patchseries.repository import Repository


def apply_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Apply, or go on applying; the target must fit by file hashes."""
    target = _target(options)
    with lock.hold(target, wait=not options.no_wait):
        planned = plan.to_apply(
            repository, target, options.base, options.through, with_tests=options.with_tests
        )
        apply.execute(planned)
    print(f"{target.named}: {planned.done}")
    return ExitCode.DONE


def check_target(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Say what apply would do, and write nothing; not so when it would refuse."""
    target = _target(options)
    data: dict[str, Any] = {"schema": 1, "target": str(target.named)}
    try:
        planned = plan.to_apply(
            repository, target, options.base, options.through, with_tests=options.with_tests
        )
        plan.require_writable(planned)
    except PatchSeriesError as error:
        if not options.json or error.code is not ExitCode.NOT_SO:
            raise
        problem = {"what": error.what, "where": error.where, "expected": error.expected}
        _print_json({**data, "would_apply": False, "problem": {**problem, "type": error.command}})
        return ExitCode.NOT_SO
    if options.json:
        changes = [{"does": verb, "file": str(path)} for verb, path in planned.actions]
        _print_json({**data, "would_apply": True, "done": planned.done, "changes": changes})
        return ExitCode.DONE
    print(f"{target.named}: apply would end with: {planned.done}")
    for verb, path in planned.actions:
        print(f"  {verb} {path}")
    return ExitCode.DONE


def reverse_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Take out what is recorded."""
    target = _target(options)
    with lock.hold(target, wait=not options.no_wait):
        planned = plan.to_reverse(repository, target)
        apply.execute(planned)
    print(f"{target.named}: {planned.done}")
    return ExitCode.DONE


def show_status(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Print the one state of a target; not so where another one was expected."""
    report = status.examine(repository, _target(options), options.base)
    code = ExitCode.DONE
    if options.expect and options.expect != report.condition.value.replace(" ", "-"):
        code = ExitCode.NOT_SO
    if options.json:
        _print_json(report.as_json())
        return code
    through = f" through {report.through}" if report.count and report.through else ""
    print(f"{report.target.named}: {report.condition.value} ({report.base}{through})")
    for each in report.reasons:
        print(f"  {report.target.path(each.path)}: {each.reason}")
        if report.condition is Condition.DRIFTED:
            print(f"    found {each.found}, expected {' or '.join(each.expected)}")
    for note in report.notes:
        print(f"  note: {note}")
    for does, typed in report.commands:
        print(f"  to {does}, type: {as_typed(typed)}")
    return code


def _target(options: argparse.Namespace) -> targets.Target:
    """The target that was named, or that of the running python."""
    if not options.installed:
        return targets.locate(options.target)
    folder, note = installed.find()
    if note:
        print(f"patchseries: {note}", file=sys.stderr)
    return targets.locate(folder)


def make_tree(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Build a tree at DEST."""
    base = options.base or repository.only_base()
    trees.build(base, options.through, options.dest, repository)
    loaded = series.load(repository, base)
    print(f"{options.dest}: {base} through {loaded.label(loaded.count(options.through))}")
    return ExitCode.DONE


def build_wheel(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Build wheels into a folder; say how long it took and what they weigh."""
    base = options.base or repository.only_base()
    pinned = pin.read(repository.folder(base))
    chosen = pinned.wheels if options.all else (wheels.for_this_python(pinned),)
    for each in chosen:
        started = time.monotonic()
        built = localwheel.build(repository, base, options.through, options.out, each)
        seconds = time.monotonic() - started
        ours, theirs = built.size / 1e6, built.released_size / 1e6
        print(f"{built.path}: {ours:.1f} MB, upstream's {theirs:.1f} MB; {seconds:.1f} s")
    return ExitCode.DONE


def list_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Print the patches of one base or all."""
    listed = [series.load(repository, base) for base in _bases(repository, options)]
    if options.json:
        _print_json({"schema": 1, "bases": [_series_as_json(each) for each in listed]})
        return ExitCode.DONE
    for each in listed:
        print(f"{each.base}: {len(each.patches)} patches")
        group = ""
        for number, patch in enumerate(each.patches, 1):
            if patch.group != group:
                group = patch.group
                print(f"group {group}")
            counts = f"+{_added(patch)} -{_removed(patch)} in {len(patch.changes)} files"
            print(f"{number:3}  {patch.message.subject}\n     {patch.name}")
            print(f"     {_upstream_status(patch)}; {counts}")
            for change in patch.changes:
                print(f"     {change.path} +{change.added} -{change.removed}")
    return ExitCode.DONE


def lint_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Print every problem; not so when there is one."""
    bases = _bases(repository, options)
    problems = [problem for base in bases for problem in lint.lint(repository, base)]
    for problem in problems:
        print(problem)
    patches = sum(len(series.read_entries(repository.folder(b) / "series")) for b in bases)
    print(f"{len(problems)} problems in {patches} patches on {', '.join(bases)}", file=sys.stderr)
    return ExitCode.NOT_SO if problems else ExitCode.DONE


def test(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Run the registered tests; not so when anything is other than the trailers say."""
    if options.checkout is not None:
        target = targets.locate(options.checkout)
        base, results = (
            str(options.checkout),
            [checkout.run(repository, target, pytest_arguments=options.pytest)],
        )
    else:
        base = options.base or repository.only_base()
        results = runner.run(
            repository,
            base,
            options.through,
            each=options.each,
            pytest_arguments=options.pytest,
            jobs=options.jobs,
        )
    found = [(each, finding) for each in results for finding in each.verdict.findings]
    for each, finding in found:
        print(f"{base} through {each.through}: {finding.what}")
        detail = each.detail(finding)
        if detail:
            print("    " + detail.replace("\n", "\n    "))
    print(runner.table(results))
    if options.json:
        data = {"schema": 1, "base": base, "prefixes": [each.as_json() for each in results]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    return ExitCode.NOT_SO if found else ExitCode.DONE


def edit_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Make the repository with one commit per patch."""
    base = options.base or repository.only_base()
    if options.renew and options.dest.exists():
        export.require_exported(repository, options.dest)
        count = edit.renew(repository, base, options.dest)
    else:
        count = edit.edit(repository, base, options.dest)
    print(f"{options.dest}: {base} as released, and {count} commits")
    return ExitCode.DONE


def export_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Renew the patch files; with --check, not so when they would change."""
    done = export.export(repository, options.dest, check=options.check)
    write, delete = ("would write", "would delete") if options.check else ("wrote", "deleted")
    for verb, names in ((write, done.written), (delete, done.deleted)):
        for name in names:
            print(f"{verb} patches/{done.base}/{name}")
    print(f"{len(done.unchanged)} files unchanged")
    return ExitCode.NOT_SO if options.check and not done.is_same else ExitCode.DONE


def pin_base(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Renew base.toml; with --check, not so when it would change."""
    base = options.base or repository.only_base()
    differs = pinning.renew(repository, base, wheel_folder=options.wheels, check=options.check)
    renewed = "would change" if options.check else "renewed"
    print(f"patches/{base}/base.toml: {renewed if differs else 'unchanged'}")
    return ExitCode.NOT_SO if options.check and differs else ExitCode.DONE


def _bases(repository: Repository, options: argparse.Namespace) -> list[str]:
    return [options.base] if options.base else repository.bases()


def _series_as_json(loaded: series.Series) -> dict[str, Any]:
    return {
        "base": loaded.base,
        "patches": [
            {
                "name": patch.name,
                "group": patch.group,
                "subject": patch.message.subject,
                "upstream_status": _upstream_status(patch),
                "sha256": patch.sha256,
                "tests": [test_id for test_id, _ in patch.message.test_ids()],
                "added": _added(patch),
                "removed": _removed(patch),
                "files": [
                    {"path": change.path, "added": change.added, "removed": change.removed}
                    for change in patch.changes
                ],
            }
            for patch in loaded.patches
        ],
    }


def _upstream_status(patch: series.Patch) -> str:
    values = patch.message.values("Upstream-Status")
    return values[0].value if values else ""


def _added(patch: series.Patch) -> int:
    return sum(change.added for change in patch.changes)


def _removed(patch: series.Patch) -> int:
    return sum(change.removed for change in patch.changes)


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, indent=1, ensure_ascii=False))
