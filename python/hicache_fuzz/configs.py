"""The configurations of the cache that are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

POLICIES = ("write_through", "write_through_selective", "write_back")
MODELS = {"mamba": ("full", "mamba"), "swa-mamba": ("full", "swa", "mamba")}


@dataclass(frozen=True)
class Config:
    """One way to set the cache up.

    model: a key of `MODELS`. page: tokens in a page. policy: HiCache's write policy. extra_buffer:
    states are tracked in buffers of their own; required for pages of more than one token. storage:
    the file backend is on from the start.
    """

    model: str
    page: int
    policy: str
    extra_buffer: bool = False
    storage: bool = False

    @property
    def name(self) -> str:
        """What the command line and a failure call it."""
        buffer = "-buffer" if self.extra_buffer and self.page == 1 else ""
        storage = "-storage" if self.storage else ""
        return f"{self.model}-page{self.page}-{self.policy}{buffer}{storage}"

    @property
    def components(self) -> tuple[str, ...]:
        """Names of the tree's components."""
        return MODELS[self.model]

    @property
    def window(self) -> int:
        """Tokens of the sliding window; longer than a page, shorter than most prompts."""
        return 3 * self.page

    @property
    def threshold(self) -> int:
        """Hits after which a write-through policy backs a node up, as in ``init_hicache``."""
        return 2 if self.policy == "write_through_selective" else 1

    @property
    def states_per_request(self) -> int:
        """State slots that sglang reserves for each running request (its Mamba ratio)."""
        return 5 if self.extra_buffer else 3


def _configs() -> tuple[Config, ...]:
    plain = [
        Config(model, page, policy, extra_buffer=page > 1)
        for model in MODELS
        for page in (1, 4)
        for policy in POLICIES
    ]
    return (
        *plain,
        Config("mamba", 1, "write_through", extra_buffer=True),
        Config("mamba", 1, "write_back", extra_buffer=True),
        Config("mamba", 1, "write_through", storage=True),
        Config("swa-mamba", 4, "write_through", extra_buffer=True, storage=True),
    )


ALL: dict[str, Config] = {config.name: config for config in _configs()}
"""Every configuration by its name, in the order in which they take turns."""


def named(names: Sequence[str]) -> tuple[Config, ...]:
    """The configurations of these names; all of them for no name.

    Raises:
        ValueError: there is none of that name.
    """
    for name in names:
        if name not in ALL:
            raise ValueError(
                f"no configuration {name!r}; expected one of: {', '.join(ALL)}; "
                "type: scripts/fuzz --help"
            )
    return tuple(ALL[name] for name in names) or tuple(ALL.values())
