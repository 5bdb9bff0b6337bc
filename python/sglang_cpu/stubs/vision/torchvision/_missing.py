"""Functions that can be imported, and say what is missing when they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn


def missing(name: str) -> Callable[..., NoReturn]:
    """Return a function that raises `NotImplementedError`, whatever it is called with."""

    def function(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"torchvision.{name}: this is the stand-in of sglang_cpu, for text models only"
        )

    return function
