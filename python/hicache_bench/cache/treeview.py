"""What the tree of a cache holds. It is looked at, not asked: a match would change what is evicted.

`PythonTree` walks the nodes of 0.5.17's tree core. From 0.5.23 on there are two cores, of which one
has no nodes in Python, and both answer what is needed: `AskedTree`.
"""

from __future__ import annotations

from array import array
from typing import Any, Protocol


class TreeView(Protocol):
    """What the replay asks about a tree."""

    def on_device(self, tokens: array[int]) -> tuple[int, bool]:
        """Tokens of the path of `tokens` whose KV is on the device, and whether its state is."""

    def node_tokens(self, node_id: int) -> int:
        """Tokens of one node."""

    def nodes(self) -> int | None:
        """Nodes of the tree, the root left out; None where the core does not tell."""


class PythonTree:
    """A tree core whose nodes are Python objects. page: tokens of a page."""

    def __init__(self, api: Any, core: Any, page: int) -> None:
        self._api = api
        self._core = core
        self._page = page

    def on_device(self, tokens: array[int]) -> tuple[int, bool]:
        """See `TreeView`."""
        kinds = self._api.ComponentType
        node, found = self._core.root_node, 0
        key = self._api.RadixKey(tokens)
        while len(key):
            child = node.children.get(key.child_key(self._page))
            shared = 0 if child is None else child.key.match(key, page_size=self._page)
            if child is None or child.component_data[kinds.FULL].value is None:
                return found, False
            found += shared
            if shared < len(child.key):
                return found, False
            node, key = child, key[shared:]
        return found, node.component_data[kinds.MAMBA].value is not None

    def node_tokens(self, node_id: int) -> int:
        """See `TreeView`."""
        return len(self._core.node_by_id(node_id).key)

    def nodes(self) -> int | None:
        """See `TreeView`."""
        return len(self._core._collect_all_nodes()) - 1


class AskedTree:
    """A tree core that answers for its nodes by their ids."""

    def __init__(self, api: Any, core: Any) -> None:
        self._api = api
        self._core = core

    def on_device(self, tokens: array[int]) -> tuple[int, bool]:
        """See `TreeView`."""
        found, node, whole_nodes = self._core.match_full_device_prefix(self._api.RadixKey(tokens))
        if found < len(tokens) or whole_nodes > found:
            return found, False
        state = self._core.get_component_device_value(node, self._api.ComponentType.MAMBA)
        return found, state is not None

    def node_tokens(self, node_id: int) -> int:
        """See `TreeView`."""
        ((*_, node),) = self._core.collect_path_info([node_id])
        tokens: int = node.path_end - node.path_start
        return tokens

    def nodes(self) -> int | None:
        """See `TreeView`."""
        return None


def of(api: Any, cache: Any) -> TreeView:
    """The view of this cache's tree."""
    core = cache.tree_core
    if hasattr(core, "match_full_device_prefix"):
        return AskedTree(api, core)
    return PythonTree(api, core, cache.page_size)
