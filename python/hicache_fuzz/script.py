"""A failing run as a file: which configuration, and the operations, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hicache_fuzz import configs
from hicache_fuzz.campaign import Failure, parse
from hicache_fuzz.configs import Config

_CONFIG = "# config: "
_KEEPS = "# no state may be lost: "


@dataclass(frozen=True)
class Script:
    """What a file says. keeps_states: see `machine.machine_for`."""

    config: Config
    keeps_states: bool
    lines: tuple[str, ...]


def write(path: Path, failure: Failure, keeps_states: bool) -> None:
    """Write the script of a failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    error = "".join(f"# {line}\n" for line in failure.error.split("\n"))
    head = f"{_CONFIG}{failure.config.name}\n{_KEEPS}{'yes' if keeps_states else 'no'}\n"
    path.write_text(head + error + "\n".join(failure.script) + "\n", encoding="utf-8")


def read(path: Path) -> Script:
    """Read a script.

    Raises:
        ValueError: the file cannot be read, or is not such a file; it says what was expected.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path}: {error}; expected a file that a failing run has written, as build/fuzz/*.py"
        ) from error
    config = next((line.removeprefix(_CONFIG) for line in lines if line.startswith(_CONFIG)), None)
    if config is None:
        raise ValueError(
            f"{path}: no line that begins with {_CONFIG!r}; expected a file that a failing run has "
            "written, as build/fuzz/*.py"
        )
    operations = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    try:
        for line in operations:
            parse(line)
        return Script(configs.named([config.strip()])[0], f"{_KEEPS}yes" in lines, operations)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
