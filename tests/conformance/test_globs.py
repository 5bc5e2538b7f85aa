"""Globs in which only `*` and `?` are special."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import globs

PATTERNS = st.text("ab*?[", max_size=6)
TEXTS = st.text("ab[", max_size=6)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("op:sort:int64:*", "op:sort:int64:static:fwd:samples", True),
        ("op:sort:int64:*", "op:sort:int32:static:fwd:samples", False),
        ("op:*:int64:*", "op:linalg.norm:int64:dynamic:bwd:samples", True),
        ("size [N] ?", "size [N] !", True),
        ("size [N]", "size N", False),
        ("", "", True),
        ("", "a", False),
        ("*", "two\nlines", True),
    ],
)
def test_matches(pattern: str, text: str, expected: bool) -> None:
    assert globs.matches(pattern, text) is expected


@given(st.text(max_size=30))
def test_every_text_matches_itself(text: str) -> None:
    assert globs.matches(text, text)


@given(PATTERNS, TEXTS)
def test_the_literal_parts_hold(pattern: str, text: str) -> None:
    if globs.matches(pattern, text):
        assert text.startswith(globs.literal_prefix(pattern))
        assert globs.longest_literal(pattern) in text


@given(PATTERNS, TEXTS)
def test_a_match_is_an_intersection_with_the_text(pattern: str, text: str) -> None:
    assert globs.intersect(pattern, text) == globs.matches(pattern, text)


@given(PATTERNS, PATTERNS, TEXTS)
def test_a_common_text_proves_an_intersection(left: str, right: str, text: str) -> None:
    assert globs.intersect(left, right) == globs.intersect(right, left)
    if globs.matches(left, text) and globs.matches(right, text):
        assert globs.intersect(left, right)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("a*", "*b", True),
        ("a*", "b*", False),
        ("a*c", "ab?", True),
        ("a?", "abc", False),
        ("*x*", "aaa", False),
        ("op:*:int64:*", "op:sort:*", True),
    ],
)
def test_intersections(left: str, right: str, expected: bool) -> None:
    assert globs.intersect(left, right) is expected
