"""The table itself, and how a lowering gets into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOWERINGS: dict[Any, Callable[..., Any]] = {}
"""By overload, or by its name (`library.operator.overload`) where another package registers it."""


def lowers(*operators: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The decorated function makes the results of these overloads."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator in operators:
            LOWERINGS[operator] = function
        return function

    return register
