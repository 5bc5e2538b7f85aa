"""The globs of expectations: `*` is any run of characters, `?` any one, all else is literal (brackets too).

Literal brackets matter: fingerprints quote messages that are full of them, and every text must match itself.
"""

from __future__ import annotations

import re
from functools import lru_cache

_WILDCARD = re.compile(r"[*?]")


def is_literal(pattern: str) -> bool:
    return _WILDCARD.search(pattern) is None


def literal_prefix(pattern: str) -> str:
    """What every text that the pattern matches starts with."""
    found = _WILDCARD.search(pattern)
    return pattern if found is None else pattern[: found.start()]


def longest_literal(pattern: str) -> str:
    """A piece that every text that the pattern matches contains: a cheap first test."""
    return max(_WILDCARD.split(pattern), key=len)


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """A regular expression to be used with `fullmatch`."""
    parts = re.split(r"(\*+|\?)", pattern)
    return re.compile(
        "".join(".*" if p.startswith("*") else "." if p == "?" else re.escape(p) for p in parts), re.DOTALL
    )


def matches(pattern: str, text: str) -> bool:
    return compiled(pattern).fullmatch(text) is not None


def intersect(left: str, right: str) -> bool:
    """Whether some text matches both patterns. Walks both at once, as one walks two automata."""
    reached = {(0, 0)}
    frontier = [(0, 0)]
    while frontier:
        i, j = frontier.pop()
        if i == len(left) and j == len(right):
            return True
        a = left[i] if i < len(left) else ""
        b = right[j] if j < len(right) else ""
        following = []
        if a == "*":
            following.append((i + 1, j))
        if b == "*":
            following.append((i, j + 1))
        if a and b:
            if a == "*" and b != "*":
                following.append((i, j + 1))
            elif b == "*" and a != "*":
                following.append((i + 1, j))
            elif a == b or a == "?" or b == "?":
                following.append((i + 1, j + 1))
        for state in following:
            if state not in reached:
                reached.add(state)
                frontier.append(state)
    return False
