"""What a model returned, as plain containers of tensors, so that it can be compared."""

from __future__ import annotations

from typing import Any

import torch

DEEPEST = 6  # objects within objects: a cache holds layers, which hold tensors


def plain(output: Any, depth: int = 0) -> Any:
    """Dicts, lists and tuples of tensors and plain values.

    A `ModelOutput` becomes a dict of what it has; an object that holds tensors (a cache, and its layers) a dict of
    them, by attribute; other objects None.
    """
    if output is None or isinstance(output, torch.Tensor | bool | int | float | complex | str):
        return output
    if isinstance(output, dict):
        return {str(name): plain(value, depth) for name, value in output.items()}
    if isinstance(output, tuple | list):
        return [plain(value, depth) for value in output]
    if depth == DEEPEST or not hasattr(output, "__dict__"):
        return None
    held = {name: plain(value, depth + 1) for name, value in sorted(vars(output).items())}
    return {name: value for name, value in held.items() if _has_tensor(value)} or None


def _has_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, list):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)
