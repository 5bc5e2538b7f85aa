"""What a decomposition is: how an operator is written in others, and when."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """`expand` takes the operator's arguments and returns its result.

    `applies` is asked first, with the same arguments (tensors are fake, sizes may be symbolic): where it says no,
    upstream does the operator better.
    """

    expand: Callable[..., Any]
    applies: Callable[..., bool] = _always


def adds_to(
    table: dict[Any, Rule], *overloads: Any, when: Callable[..., bool] = _always
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function into `table` as the rule of these overloads."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        table.update(dict.fromkeys(overloads, Rule(function, when)))
        return function

    return enter
