"""Support of an op from what was seen: a table, and properties that no evidence may break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.outcomes import Support
from conformance.support import VIEWS, computes, operator, support_of

SOFTMAX = ("aten::_softmax",)
NATIVE, CUSTOM, DECOMPOSED, FALLBACK = Support.NATIVE, Support.CUSTOM, Support.DECOMPOSED, Support.FALLBACK

RULES = [
    # eager ops, lowered, fallbacks, custom kernels, kernels, breaks -> support
    (SOFTMAX, {"aten::_softmax": 1}, {}, {}, 1, 0, NATIVE),
    (SOFTMAX, {"aten.exp.default": 1, "aten.sum.dim_IntList": 1}, {}, {}, 1, 0, DECOMPOSED),
    (("aten::add_.Tensor",), {"aten.add.Tensor": 1}, None, None, 1, 0, NATIVE),
    (("aten::add.out",), {"aten::add.Scalar": 1}, {}, {}, 1, 0, NATIVE),
    (("aten::mm", "aten::exp"), {"aten::mm": 1, "aten::exp2": 1}, {}, {}, 2, 0, DECOMPOSED),
    (("aten::zeros",), {}, {}, {}, 0, 0, DECOMPOSED),  # folded into a constant
    (("aten::t", "aten::view"), {}, {}, {}, 0, 0, NATIVE),  # nothing to compute
    (("aten::t",), None, None, None, None, 0, NATIVE),
    (("aten::mm",), {"aten::mm": 1}, {}, {"aten::mm.out": 1}, 0, 0, CUSTOM),
    (("aten::mm",), {"aten::mm": 1}, {"aten::mm": 1}, {"other": 1}, 1, 0, FALLBACK),
    (("aten::t",), {}, {"aten::copy_": 2}, {}, 0, 0, FALLBACK),
    (("aten::mm",), {"aten::mm": 1}, {"aten::mm": 0}, {"x": 0}, 1, 0, NATIVE),
    (("aten::nonzero",), {}, {}, {}, 0, 1, CUSTOM),  # broke, and the device's own eager kernel ran
    (("aten::nonzero",), {}, None, {}, 0, 1, FALLBACK),  # broke, and nobody counts what ran
    (("aten::nonzero",), {}, {"aten::nonzero": 1}, {}, 0, 1, FALLBACK),
    (("aten::sin",), {"aten::sin": 1}, {}, {}, 1, 1, NATIVE),  # the break left nothing out
    (("aten::sin",), None, None, None, None, 0, None),
    (("aten::sin",), None, {}, None, 3, 0, None),
    ((), None, None, None, None, 0, None),
    ((), {}, {}, {}, 0, 0, DECOMPOSED),
]


@pytest.mark.parametrize(("eager", "lowered", "fallbacks", "custom", "kernels", "breaks", "support"), RULES)
def test_the_rules(eager, lowered, fallbacks, custom, kernels, breaks, support) -> None:
    assert support_of(eager, lowered, fallbacks, custom, kernels, breaks) == support


@pytest.mark.parametrize(
    ("eager", "lowered", "fallbacks", "breaks", "graphs", "own_device", "support"),
    [
        (("aten::nonzero",), {}, {}, 1, 2, True, CUSTOM),
        (("aten::nonzero",), {}, {}, 1, 2, False, FALLBACK),  # PyTorch itself ran it
        (("aten::nonzero",), {}, {}, 0, 0, False, FALLBACK),  # no graph at all, and no break that says so
        (("aten::nonzero",), {}, {}, 0, 0, True, CUSTOM),
        (("aten::nonzero",), None, None, 0, 0, False, FALLBACK),
        (("aten::nonzero",), None, None, 0, 0, True, None),  # eager on a device that does not tell
        (("aten::t",), None, None, 0, 0, False, NATIVE),
        (("aten::nonzero",), None, None, 1, 2, False, None),  # what was in the two graphs?
        (("aten::zeros",), {}, {}, 0, 1, False, DECOMPOSED),
        (("aten::t",), {}, {}, 0, 0, False, NATIVE),
        (("aten::sin",), {"aten::sin": 1}, {}, 0, 1, False, NATIVE),
    ],
)
def test_what_the_compiler_never_saw(eager, lowered, fallbacks, breaks, graphs, own_device, support) -> None:
    found = support_of(eager, lowered, fallbacks, {}, 1, breaks, graphs=graphs, own_device=own_device)
    assert found == support


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("aten::add_.Tensor", "aten::add"),
        ("aten.add.Tensor", "aten::add"),
        ("aten::relu", "aten::relu"),
        ("aten::__and__.Scalar", "aten::__and__"),
        ("aten::_foreach_add_.List", "aten::_foreach_add"),
        ("prims::convert_element_type", "prims::convert_element_type"),
        ("prims.fma.default", "prims::fma"),
    ],
)
def test_one_operator_however_it_is_written(name: str, base: str) -> None:
    assert operator(name) == base


counts = st.dictionaries(st.sampled_from(["aten::sin", "aten::mm", "aten::t"]), st.integers(0, 3))
maybe = st.none() | counts


@given(st.lists(st.sampled_from(["aten::sin", "aten::mm", "aten::t"])), maybe, maybe, maybe, st.integers(0, 3))
def test_what_ran_on_the_host_is_never_coverage(eager, lowered, fallbacks, custom, breaks) -> None:
    support = support_of(eager, lowered, fallbacks, custom, 1, breaks)
    ran_on_host = any((fallbacks or {}).values())
    assert (support is FALLBACK) >= ran_on_host
    if support is NATIVE and any(computes(name) for name in eager):
        assert lowered is not None
        assert {operator(n) for n in eager if computes(n)} <= {operator(n) for n in lowered}


MAY_COPY = {
    "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
    "coalesce",
    "contiguous",
    "pin_memory",
    "ravel",
    "reshape",
    "reshape_as",
    "to",
}
"""Composite operators that alias or copy, as the case may be; eager dispatches to what they are made of."""


def test_the_views_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    views = set()
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(torch.ops.aten, base, None) if namespace == "aten" else None
        found = getattr(packet, overload or "default", None)
        if found is not None and is_view(found._schema):
            views.add(base)
    assert len(views) > 40
    assert views - VIEWS == MAY_COPY


def is_view(schema) -> bool:
    """A result that aliases an argument without writing to it."""
    aliases = [result.alias_info for result in schema.returns if result.alias_info is not None]
    return bool(aliases) and not any(alias.is_write for alias in aliases)
