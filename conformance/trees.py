"""Nested tuples, lists, dicts and dataclasses of leaves, with paths that people can read.

PyTorch's own pytree is a private module and its paths are keys, not text; what is needed here is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


def _children(node: Any) -> list[tuple[str, Any]] | None:
    """(path suffix, child) of a container, or None for a leaf."""
    if isinstance(node, dict):
        return [(f"[{key!r}]", child) for key, child in node.items()]
    if isinstance(node, tuple) and type(node).__name__ == "Size":
        return None
    if isinstance(node, (tuple, list)):
        names = getattr(node, "_fields", None)
        if names:
            return [(f".{name}", child) for name, child in zip(names, node, strict=True)]
        return [(f"[{i}]", child) for i, child in enumerate(node)]
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        return [(f".{f.name}", getattr(node, f.name)) for f in dataclasses.fields(node)]
    return None


def flatten(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) in order; the path of a tree's third child is `path[2]`."""
    children = _children(tree)
    if children is None:
        yield path, tree
    else:
        for suffix, child in children:
            yield from flatten(child, path + suffix)


def map_leaves(tree: Any, fn: Callable[[str, Any], Any], path: str = "") -> Any:
    """A new tree of the same containers with `fn(path, leaf)` for each leaf, called in the order of `flatten`."""
    children = _children(tree)
    if children is None:
        return fn(path, tree)
    made = [map_leaves(child, fn, path + suffix) for suffix, child in children]
    if isinstance(tree, dict):
        items = dict(zip(tree, made, strict=True))
        if type(tree) is dict:
            return items
        try:
            return type(tree)(items)
        except TypeError:  # a dict subclass with a constructor of its own
            return items
    if isinstance(tree, tuple):
        if hasattr(tree, "_fields"):
            return type(tree)(*made)
        return type(tree)(made)
    if isinstance(tree, list):
        return made
    return dataclasses.replace(tree, **{f.name: m for f, m in zip(dataclasses.fields(tree), made, strict=True)})


def structure(tree: Any) -> str:
    """The containers alone: `(*, [*, *])`, where `*` is a leaf. Tuples of every kind look alike."""
    children = _children(tree)
    if children is None:
        return "*"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {structure(child)}" for key, child in tree.items()) + "}"
    inside = ", ".join(structure(child) for _, child in children)
    return f"[{inside}]" if isinstance(tree, list) else f"({inside})"
