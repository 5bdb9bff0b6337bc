"""The command line: what may be typed. What it does lies in commands.py."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from patchseries import commands
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.report import Condition
from patchseries.repository import Repository

Command = Callable[[Repository, argparse.Namespace], ExitCode]

_ABOUT = """\
Keep, check, apply, test and take out the patch series on top of a pinned sglang release.

example:
  python -m patchseries apply /path/to/site-packages
  python -m patchseries status /path/to/site-packages
  python -m patchseries reverse /path/to/site-packages

exit codes: 0 done, 1 not so, 2 usage
"""
_TARGET = "a folder that holds sglang/, a git checkout of sglang, or its python/ folder"
_THROUGH = "stop after this group or patch; 'base' is as released, 'all' (the default) everything"
_NO_WAIT = "exit 1 where another apply or reverse is at work, and say which process it is"
_BASE = "the release, such as v0.5.17 (default: the only one there is)"
_RECOGNISED = "the release, such as v0.5.17 (default: recognised by file hashes)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    behind: list[str] = []
    if "--" in typed:  # argparse would take these for its own
        behind = typed[typed.index("--") + 1 :]
        typed = typed[: typed.index("--")]
    parser = _parser()
    options = parser.parse_args(typed)
    if behind and options.run is not commands.test:
        parser.error("only test takes arguments behind --")
    options.pytest = behind
    if options.run is commands.test and options.checkout and (options.each or options.through):
        parser.error("--checkout takes neither --each nor --through: it tests what is there")
    try:
        code = options.run(Repository(options.repo.resolve()), options)
        sys.stdout.flush()
        return int(code)
    except PatchSeriesError as error:
        print(f"patchseries: {error}", file=sys.stderr)
        return int(error.code)
    except BrokenPipeError:  # whoever read the output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        where = f"; {error.filename}" if error.filename else ""
        print(f"patchseries: {error.strerror or error}{where}", file=sys.stderr)
        return int(ExitCode.NOT_SO)
    except KeyboardInterrupt:
        print("patchseries: stopped", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m patchseries",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--repo",
        type=Path,
        default=Repository.default().root,
        help="the checkout of this project to use (default: the one that this tool lies in)",
    )
    group = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    _add_for_targets(group)
    _add_wheel(group)
    _add_for_series(group)
    _add_for_maintainers(group)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


Group: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add(
    group: Group, name: str, run: Command, about: str, example: str
) -> argparse.ArgumentParser:
    """Add a command; its options follow at the caller."""
    command = group.add_parser(
        name,
        help=about,
        description=f"{about.capitalize()}.\n\nexample:\n  python -m patchseries {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def _add_target(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("target", type=Path, nargs="?", metavar="TARGET", help=_TARGET)
    which.add_argument(
        "--installed",
        action="store_true",
        help="the sglang of the python that runs this, also an editable install",
    )


def _add_what_to_apply(command: argparse.ArgumentParser) -> None:
    command.add_argument("--base", help=_RECOGNISED)
    command.add_argument("--through", metavar="NAME", help=_THROUGH)
    command.add_argument(
        "--with-tests",
        action="store_true",
        help="also lay our registered tests into test/registered/ of a checkout",
    )


def _add_for_targets(group: Group) -> None:
    command = _add(
        group,
        "apply",
        commands.apply_series,
        "apply the series to a target, all of it or nothing",
        "apply ~/sglang --through core",
    )
    _add_target(command)
    _add_what_to_apply(command)
    command.add_argument("--no-wait", action="store_true", help=_NO_WAIT)
    command = _add(
        group,
        "check",
        commands.check_target,
        "say what apply would do, and write nothing; exit 1 where it would refuse",
        "check --installed --json",
    )
    _add_target(command)
    _add_what_to_apply(command)
    command.add_argument("--json", action="store_true", help="for programs")
    command = _add(
        group,
        "status",
        commands.show_status,
        "say what state a target is in, and why",
        "status ~/sglang --json",
    )
    _add_target(command)
    command.add_argument("--base", help=_RECOGNISED)
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument(
        "--expect",
        choices=[each.value.replace(" ", "-") for each in Condition],
        metavar="STATE",
        help="exit 1 in any other state than this one, such as applied or not-applied",
    )
    command = _add(
        group,
        "reverse",
        commands.reverse_series,
        "take out what apply recorded, and give back the very bytes",
        "reverse ~/sglang",
    )
    _add_target(command)
    command.add_argument("--no-wait", action="store_true", help=_NO_WAIT)
    command = _add(
        group,
        "tree",
        commands.make_tree,
        "build a patched source tree from the pinned wheel",
        "tree --base v0.5.17 --through core /tmp/sglang-core",
    )
    command.add_argument(
        "dest", type=Path, metavar="DEST", help="a folder that is not there, or empty"
    )
    command.add_argument("--base", help=_BASE)
    command.add_argument("--through", metavar="NAME", help=_THROUGH)


def _add_wheel(group: Group) -> None:
    command = _add(
        group,
        "wheel",
        commands.build_wheel,
        "build a wheel of the patched release, with a local version, the same to the byte always",
        "wheel --base v0.5.17 --out dist/",
    )
    command.add_argument("--base", help=_BASE)
    command.add_argument("--through", metavar="NAME", help=_THROUGH)
    command.add_argument(
        "--out", type=Path, default=Path("dist"), metavar="FOLDER", help="default: dist"
    )
    command.add_argument(
        "--all", action="store_true", help="for every pinned python and machine, not just this one"
    )


def _add_for_series(group: Group) -> None:
    command = _add(group, "list", commands.list_series, "list the patches in order", "list --json")
    command.add_argument("--base", help="only this release (default: all)")
    command.add_argument("--json", action="store_true", help="for programs")
    command = _add(
        group,
        "lint",
        commands.lint_series,
        "check names, headers, trailers, format, hashes, and that the patches apply in order",
        "lint --base v0.5.17",
    )
    command.add_argument("--base", help="only this release (default: all)")
    command = _add(
        group,
        "test",
        commands.test,
        "run the registered tests: those that a patch names pass with it and fail without it",
        "test --base v0.5.17 --each -- -k backup",
    )
    command.add_argument("--base", help=_BASE)
    command.add_argument("--through", metavar="NAME", help=_THROUGH)
    command.add_argument(
        "--each", action="store_true", help="on every prefix of the series, as released included"
    )
    command.add_argument(
        "--jobs",
        type=_positive,
        default=min(2, os.cpu_count() or 1),
        metavar="N",
        help="prefixes to test at the same time with --each (default here: %(default)s)",
    )
    command.add_argument(
        "--checkout",
        type=Path,
        metavar="DIR",
        help="run this patched checkout's own registered tests of HiCache instead",
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="write the results for programs")


def _add_for_maintainers(group: Group) -> None:
    command = _add(
        group,
        "edit",
        commands.edit_series,
        "make a git repository with the released sources and one commit per patch",
        "edit --base v0.5.17 /tmp/edit",
    )
    command.add_argument(
        "dest", type=Path, metavar="DEST", help="a folder that is not there, or empty"
    )
    command.add_argument("--base", help=_BASE)
    command.add_argument(
        "--renew",
        action="store_true",
        help="take the place of an earlier one at DEST, unless it holds what was not exported",
    )
    command = _add(
        group,
        "export",
        commands.export_series,
        "write the commits of such a repository back as patches, series and base.toml",
        "export /tmp/edit --check",
    )
    command.add_argument("dest", type=Path, metavar="DEST", help="the repository that edit made")
    command.add_argument(
        "--check", action="store_true", help="only say what would change; exit 1 if so"
    )
    command = _add(
        group,
        "pin",
        commands.pin_base,
        "renew the hashes in base.toml from the pinned wheel and the patches",
        "pin --base v0.5.17 --check",
    )
    command.add_argument("--base", help=_BASE)
    command.add_argument(
        "--wheels",
        type=Path,
        metavar="FOLDER",
        help="pin the wheels found below; starts a new base",
    )
    command.add_argument(
        "--check", action="store_true", help="only say whether it would; exit 1 if so"
    )
