"""What each command does and prints. Answers go to standard output, progress to standard error."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from patchseries import (
    apply,
    edit,
    export,
    lint,
    pinning,
    plan,
    runner,
    series,
    status,
    targets,
    trees,
)
from patchseries.errors import ExitCode
from patchseries.repository import Repository


def apply_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Apply, or go on applying; the target must fit by file hashes."""
    target = targets.locate(options.target)
    planned = plan.to_apply(repository, target, options.base, options.through)
    apply.execute(planned)
    print(f"{options.target}: {planned.done}")
    return ExitCode.DONE


def reverse_series(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Take out what is recorded."""
    planned = plan.to_reverse(repository, targets.locate(options.target))
    apply.execute(planned)
    print(f"{options.target}: {planned.done}")
    return ExitCode.DONE


def show_status(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Print the one state of a target; done whatever the state is."""
    report = status.examine(repository, targets.locate(options.target), options.base)
    if options.json:
        _print_json(report.as_json())
        return ExitCode.DONE
    through = f" through {report.through}" if report.count else ""
    print(f"{options.target}: {report.condition.value} ({report.base}{through})")
    for each in report.reasons:
        print(f"  {each.path}: {each.reason}")
        if report.condition is status.Condition.DRIFTED:
            print(f"    found {each.found}, expected {' or '.join(each.expected)}")
    for note in report.notes:
        print(f"  note: {note}")
    return ExitCode.DONE


def make_tree(repository: Repository, options: argparse.Namespace) -> ExitCode:
    """Build a tree at DEST."""
    base = options.base or repository.only_base()
    trees.build(base, options.through, options.dest, repository)
    loaded = series.load(repository, base)
    print(f"{options.dest}: {base} through {loaded.label(loaded.count(options.through))}")
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
    base = options.base or repository.only_base()
    results = runner.run(
        repository, base, options.through, each=options.each, pytest_arguments=options.pytest
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
