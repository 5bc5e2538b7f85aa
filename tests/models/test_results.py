"""What models return, as plain containers."""

from __future__ import annotations

import types
from collections import OrderedDict

import torch

from models.results import plain

T = torch.ones(2)


def test_containers_and_plain_values_stay():
    assert plain({"a": (T, 1, None), "b": [2.5, "x"]}) == {"a": [T, 1, None], "b": [2.5, "x"]}
    assert plain(OrderedDict(a=T))["a"] is T


def test_of_objects_the_tensors_are_kept_by_attribute():
    layer = types.SimpleNamespace(values=T, keys=T + 1, size=7, dtype=T.dtype)
    cache = types.SimpleNamespace(layers=[layer, layer], offloading=False)
    made = plain({"cache": cache})
    assert list(made["cache"]) == ["layers"]
    assert list(made["cache"]["layers"][0]) == ["keys", "values"]


def test_objects_without_tensors_and_objects_that_hold_themselves_are_nothing():
    assert plain(types.SimpleNamespace(a=1)) is None
    loop = types.SimpleNamespace()
    loop.itself = loop
    assert plain(loop) is None
