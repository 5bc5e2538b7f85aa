"""Judge what a backend gave for a sample: values, special values, metadata, aliasing, mutation, gradients.

What is compared is decided here; how far values may differ in `bounds`, how they are compared in `values` and
`metadata`, and what they are compared with in `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from conformance import trees
from conformance.backends.protocol import Capabilities
from conformance.calls import CallResult, Leaf, to_host
from conformance.cases import Case, Direction, NumericalClass, Sample
from conformance.judgement import bounds, metadata, ties, values
from conformance.judgement.distribution import compare_random, limit_of_draws, uninitialized_positions
from conformance.judgement.findings import Check, Finding, Judgement
from conformance.numerics import representable, round_to
from conformance.reference import Reference, ReferenceUnavailable, bits_equal, make_reference, tensors_of

__all__ = ["Check", "Finding", "Judgement", "ReferenceUnavailable", "judge", "make_reference"]


@dataclass
class _Judging:
    """State of judging one call."""

    reference: Reference
    result: CallResult
    capabilities: Capabilities
    prefix: str
    device: str  # type of the device that outputs should be on
    findings: list[Finding] = field(default_factory=list)
    measured: list[values.Measured] = field(default_factory=list)
    compared: int = 0

    @property
    def numerics(self) -> NumericalClass:
        return self.reference.sample.numerics

    def add(self, check: Check, where: str, message: str, error_class: str = "") -> None:
        self.findings.append(Finding(check, self.prefix + where, message, error_class))


def judge(
    case: Case, sample: Sample, reference: Reference, result: CallResult, capabilities: Capabilities
) -> Judgement:
    """The verdict on `result`, which came from running the sample on a backend with these `capabilities`.

    A pass means: every output, mutated input and gradient was compared; the finite values are within the bound of the
    sample's numerical class, itself clipped to 10 % of the result's size; NaN, infinities and (for exact and
    elementwise classes) signs of zero are where they belong; shape, dtype, strides, device, requires_grad and aliasing
    are those of PyTorch on the CPU; inputs that should not change kept their bits. What compared nothing is no pass.

    Raises `ValueError` where the capabilities name an unknown number format.
    """
    del case  # its facts are in the reference; in the signature for symmetry with make_reference
    device = torch.device(capabilities.device).type
    calls = [(reference, result, "")]
    calls += [(r, got, f"replay[{i}] ") for i, (r, got) in enumerate(zip(reference.replays, result.replays))]  # noqa: B905
    states = [_Judging(ref, got, capabilities, prefix, device) for ref, got, prefix in calls]
    for state in states:
        _judge_call(state)
    first = states[0]
    if len(reference.replays) != len(result.replays):
        expected, got = len(reference.replays), len(result.replays)
        first.add(Check.STRUCTURE, "output", f"expected {expected} replays and got {got}", "replays")
    measured = [m for state in states for m in state.measured]
    findings = [f for state in states for f in state.findings]
    compared = sum(state.compared for state in states)
    declared = [str(sample.tolerance)] if sample.tolerance is not None else []
    if compared == 0 and not findings:
        findings.append(Finding(Check.NOTHING, "output", "nothing was compared: no output, gradient or changed input"))
    return Judgement(
        ok=not findings,
        findings=tuple(findings),
        compared=compared,
        error=values.merge(measured, lambda m: m.error),
        slack=values.merge(measured, lambda m: m.slack),
        loosest=values.merge(measured, lambda m: m.loosest),
        notes=tuple(
            dict.fromkeys(
                [*declared, *(n for ref, _, _ in calls for n in ref.notes), *(n for m in measured for n in m.notes)]
            )
        ),
    )


def _judge_call(j: _Judging) -> None:
    expected, got = j.reference.same, j.result
    if expected.structure != got.structure or len(expected.outputs) != len(got.outputs):
        j.add(Check.STRUCTURE, "output", f"expected {expected.structure} and got {got.structure}", "structure")
    else:
        for i, (e, g) in enumerate(zip(expected.outputs, got.outputs, strict=True)):
            _judge_output(j, i, e, g)
        if j.numerics is NumericalClass.PROPERTY or j.reference.sample.postprocess is not None:
            _judge_tree(j)
        j.findings += metadata.compare_aliasing(expected, got, j.prefix)
    _judge_inputs(j)
    _judge_gradients(j)


# --- outputs --------------------------------------------------------------------------------------------------------


def _judge_output(j: _Judging, index: int, e: Leaf, g: Leaf) -> None:
    where = j.prefix + e.path
    if e.opaque or g.opaque:
        j.add(Check.UNCOMPARABLE, e.path, e.opaque or g.opaque, "opaque")
        return
    if e.meta is None or g.meta is None:
        _judge_plain(j, e, g)
        return
    found = metadata.compare_leaf(e, g, where, j.device, j.reference)
    j.findings += found
    j.compared += 1
    if any(f.check in (Check.SHAPE, Check.DTYPE) for f in found):
        return
    if j.numerics is not NumericalClass.PROPERTY and j.reference.sample.postprocess is None:
        _judge_values(j, index, e, g, where, j.numerics)


def _judge_plain(j: _Judging, e: Leaf, g: Leaf) -> None:
    """Results that are not tensors, or are on one side only."""
    j.compared += e.value is not None or e.meta is not None  # two times None is no comparison
    if type(e.value) is not type(g.value):
        was, now = type(e.value).__name__, type(g.value).__name__
        j.add(
            Check.TYPE,
            e.path,
            f"expected a {was} ({e.value!r:.60}) and got a {now} ({g.value!r:.60})",
            f"{was} -> {now}",
        )
        return
    if j.numerics is NumericalClass.PROPERTY or bits_equal(e.value, g.value):
        return
    if isinstance(e.value, (float, complex)):
        index = j.reference.same.outputs.index(e)
        _judge_number(j, index, e, g)
        return
    try:
        equal = bool(e.value == g.value)
    except Exception:  # an object whose comparison is not a bool: identity is all there is
        equal = e.value is g.value
    if not equal:
        j.add(Check.VALUES, e.path, f"expected {e.value!r:.80} and got {g.value!r:.80}", "not equal")


def _judge_number(j: _Judging, index: int, e: Leaf, g: Leaf) -> None:
    """A Python float or complex: a value of the case's dtype that left the tensor."""
    dtype = j.reference.dtype if j.reference.dtype.is_floating_point or j.reference.dtype.is_complex else torch.float32
    exact = j.reference.exact
    wide = torch.complex128 if isinstance(e.value, complex) else torch.float64
    target = exact.outputs[index].value if exact is not None else e.value
    formats = bounds.formats_for(dtype, j.capabilities)
    same, value, aim = (values.real(torch.tensor(v, dtype=wide)) for v in (e.value, g.value, target))
    subject = bounds.Subject(index, NumericalClass.ELEMENTWISE, aim, same, formats, formats, exact is not None)
    comparison = values.Comparison(j.prefix + e.path, value, subject, wide.is_complex, False)
    _keep(j, values.compare_within(comparison, j.reference))


def _judge_values(j: _Judging, index: int, e: Leaf, g: Leaf, where: str, numerics: NumericalClass) -> None:
    """Values of one result at `index` of `tensors_of`; shapes and dtypes agree."""
    same, got = e.value, g.value
    if not (same.is_floating_point() or same.is_complex()):
        candidates = [same]
        exact_leaf = _exact_leaf(j, index)
        if exact_leaf is not None and exact_leaf.value.dtype == same.dtype:
            candidates.append(exact_leaf.value)
        candidates += _other_run(j, index)
        candidates += _on_device_inputs(j, index, same.dtype)
        found = values.compare_exactly(got, candidates, where)
        # Forward, an op's class or its check says what is free; backward, indices are what the gradient came by.
        backward = j.reference.case.direction is Direction.BACKWARD
        if found.findings and backward and ties.is_other_choice(j.reference, index, got):
            found = values.Measured(slack=0.0, loosest=0.0, notes=[f"{where}: another choice among equal inputs"])
        _keep(j, found)
        return
    if numerics is NumericalClass.EXACT:
        _keep(j, values.compare_exactly(got, _exact_candidates(j, index, same), where))
        return
    comparison = _comparison(j, index, same, got, where, numerics)
    found = values.compare_within(comparison, j.reference)
    if found.findings and _is_gradient(j, index) and not same.is_complex():
        found = _compare_with_other_choice(j, index, comparison, found)
    _keep(j, found)


def _is_gradient(j: _Judging, index: int) -> bool:
    return index >= len(j.reference.same.outputs) + len(j.reference.same.inputs)


def _compare_with_other_choice(
    j: _Judging, index: int, comparison: values.Comparison, found: values.Measured
) -> values.Measured:
    """`found`, or what is found beside the gradient of another choice among equal inputs, where that passes."""
    other = ties.other_choice(j.reference, index, comparison.got)
    if other is None:
        return found
    subject = comparison.subject
    changed = other != subject.target
    same = torch.where(changed, other, subject.same)  # what the CPU loses at its own choice is no measure for this one
    again = replace(comparison, subject=replace(subject, target=other, same=same))
    second = values.compare_within(again, j.reference)
    if second.findings:
        return found
    return replace(second, notes=[*second.notes, f"{comparison.where}: another choice among equal inputs"])


def _comparison(
    j: _Judging, index: int, same: Tensor, got: Tensor, where: str, numerics: NumericalClass
) -> values.Comparison:
    exact_leaf = _exact_leaf(j, index)
    narrow = values.real(same).double()
    target = values.real(exact_leaf.value).double() if exact_leaf is not None else narrow
    formats = bounds.formats_for(same.dtype, j.capabilities)
    subject = bounds.Subject(
        index,
        numerics,
        target,
        narrow,
        formats,
        bounds.case_formats(j.reference, j.capabilities, formats),
        exact_leaf is not None,
        j.reference.sample.ulps,
        j.reference.sample.tolerance,
    )
    for other in _other_run(j, index):  # two answers of the CPU: what lies between them is its own uncertainty
        spread = (values.real(other).double() - narrow).abs().nan_to_num(0.0, 0.0, 0.0)
        subject.same = narrow + spread
    signed = numerics is NumericalClass.ELEMENTWISE
    return values.Comparison(where, values.real(got).double(), subject, same.is_complex(), signed)


def _exact_leaf(j: _Judging, index: int) -> Leaf | None:
    exact = j.reference.exact
    if exact is None:
        return None
    leaf = tensors_of(exact)[index]
    return leaf if isinstance(leaf.value, Tensor) else None


def _other_run(j: _Judging, index: int) -> list[Tensor]:
    if j.reference.other is None:
        return []
    value = tensors_of(j.reference.other)[index].value
    return [value] if isinstance(value, Tensor) else []


def _exact_candidates(j: _Judging, index: int, same: Tensor) -> list[Tensor]:
    """What an exact op may give: the CPU's answer, or the float64 one in the dtype, also on inputs as the device sees
    them and in the format in which the device holds results."""
    candidates = [same, *_other_run(j, index)]
    leaf = _exact_leaf(j, index)
    formats = bounds.formats_for(same.dtype, j.capabilities)
    if leaf is not None and leaf.value is not same:
        candidates.append(_cast(leaf.value, same.dtype))
    candidates += _on_device_inputs(j, index, same.dtype)
    if formats.coarser or formats.flushes:
        for c in list(candidates):
            candidates.append(_representable(c, formats))
            candidates.append(_by_component(round_to, c, formats.device, flush_subnormals=formats.flushes))
    return candidates


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


def _on_device_inputs(j: _Judging, index: int, dtype: torch.dtype) -> list[Tensor]:
    """The float64 result on inputs rounded to the device's format, where that is not the dtype's own."""
    if not j.reference.dtype.is_floating_point and not j.reference.dtype.is_complex:
        return []
    formats = bounds.formats_for(j.reference.dtype, j.capabilities)
    if not (formats.coarser or formats.flushes) or j.reference.exact is None:
        return []
    seen = j.reference.on_inputs(formats.device, formats.flushes)
    return [_cast(seen[index], dtype)] if seen is not None and isinstance(seen[index], Tensor) else []


def _as_held(j: _Judging) -> Reference | None:
    """The reference on inputs as the device holds them, where that is not as the CPU does."""
    if not j.reference.dtype.is_floating_point and not j.reference.dtype.is_complex:
        return None
    formats = bounds.formats_for(j.reference.dtype, j.capabilities)
    if not (formats.coarser or formats.flushes):
        return None
    return j.reference.as_held(formats.device, formats.flushes)


def _keep(j: _Judging, measured: values.Measured) -> None:
    j.measured.append(measured)
    j.findings += measured.findings


# --- whole results: properties and postprocessed values ---------------------------------------------------------------


def _judge_tree(j: _Judging) -> None:
    sample = j.reference.sample
    process = sample.postprocess or (lambda tree: tree)
    try:
        expected, got = process(j.reference.same.tree), process(j.result.tree)
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        j.add(
            Check.PROPERTY, "output", f"the results cannot be processed: {type(error).__name__}: {text}", "postprocess"
        )
        return
    if sample.check is not None:
        inputs = (j.reference.args, j.reference.kwargs)
        try:
            complaint = sample.check(inputs, got, expected)
            if complaint and (held := _as_held(j)) is not None:  # a value is one of the inputs that the device has
                complaint = sample.check((held.args, held.kwargs), got, process(held.same.tree))
        except Exception as error:
            complaint = f"the check itself failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        j.compared += 1
        if complaint:
            j.add(Check.PROPERTY, "output", complaint, "property")
        return
    left, right = list(trees.flatten(expected, "output")), list(trees.flatten(got, "output"))
    if [p for p, _ in left] != [p for p, _ in right]:
        j.add(Check.STRUCTURE, "output", "the processed results have another structure", "structure")
        return
    if j.numerics is NumericalClass.PROPERTY:
        _judge_distributions(j, left, right)
    else:
        _judge_processed(j, left, right)


def _judge_distributions(j: _Judging, left: Sequence[tuple[str, object]], right: Sequence[tuple[str, object]]) -> None:
    holes = uninitialized_positions(j.reference)
    for i, ((path, e), (_, g)) in enumerate(zip(left, right, strict=True)):
        if isinstance(e, Tensor) and isinstance(g, Tensor) and e.shape == g.shape and e.dtype == g.dtype:
            hole = holes[i] if i < len(holes) else None
            complaint = compare_random(e, g, hole, partial(limit_of_draws, j.reference, path))
            if complaint:
                j.add(Check.PROPERTY, path, complaint, "distribution")


def _judge_processed(j: _Judging, left: Sequence[tuple[str, object]], right: Sequence[tuple[str, object]]) -> None:
    sample, exact = j.reference.sample, j.reference.exact
    assert sample.postprocess is not None
    aims: dict[str, object] = {}
    if exact is not None:
        aims = dict(trees.flatten(sample.postprocess(exact.tree), "output"))
    for path, e in left:
        g = dict(right)[path]
        if not isinstance(e, Tensor) or not isinstance(g, Tensor):
            if not bits_equal(e, g):
                j.add(Check.VALUES, path, f"expected {e!r:.80} and got {g!r:.80}", "not equal")
            continue
        if e.shape != g.shape or e.dtype != g.dtype:
            j.add(Check.SHAPE, path, f"expected {e.dtype} {tuple(e.shape)} and got {g.dtype} {tuple(g.shape)}", "shape")
            continue
        plain_e, plain_g = to_host(e)[0], to_host(g)[0]
        aim = aims.get(path)
        assert plain_e is not None
        assert plain_g is not None
        if not (e.is_floating_point() or e.is_complex()) or j.numerics is NumericalClass.EXACT:
            _keep(j, values.compare_exactly(plain_g, [plain_e], j.prefix + path))
            continue
        narrow = values.real(plain_e).double()
        target = values.real(aim).double() if isinstance(aim, Tensor) and aim.shape == e.shape else narrow
        formats = bounds.formats_for(e.dtype, j.capabilities)
        own = bounds.case_formats(j.reference, j.capabilities, formats)
        subject = bounds.Subject(None, NumericalClass.COMPOSITE, target, narrow, formats, own, target is not narrow)
        comparison = values.Comparison(j.prefix + path, values.real(plain_g).double(), subject, e.is_complex(), False)
        _keep(j, values.compare_within(comparison, j.reference))


# --- inputs and gradients -------------------------------------------------------------------------------------------


def _judge_inputs(j: _Judging) -> None:
    """Inputs after the call: changed exactly where PyTorch changes them."""
    reference, offset = j.reference, len(j.reference.same.outputs)
    originals = [t for _, t in trees.flatten((reference.args, reference.kwargs)) if isinstance(t, Tensor)]
    for i, (original, e, g) in enumerate(zip(originals, reference.same.inputs, j.result.inputs, strict=True)):
        where = f"{e.path} after the call"
        before, opaque = to_host(original, copy=False)
        if opaque or e.opaque or g.opaque or before is None:
            continue  # what cannot be read back cannot be told to have changed
        assert e.meta is not None
        assert g.meta is not None
        if e.meta.shape != g.meta.shape or e.meta.dtype != g.meta.dtype:
            was, now = (e.meta.shape, e.meta.dtype), (g.meta.shape, g.meta.dtype)
            j.add(Check.MUTATION, where, f"expected shape and dtype {was} and got {now}", "shape")
            continue
        if not metadata.strides_agree(e.meta, g.meta):
            j.add(Check.MUTATION, where, f"expected strides {e.meta.stride} and got {g.meta.stride}", "strides")
        kept = _kept(j, before, g.value)
        if bits_equal(before, e.value):
            if not kept:
                j.add(Check.MUTATION, where, f"was changed, but should not be: {_where(before, g.value)}", "changed")
            continue
        j.compared += 1
        if kept:
            j.add(Check.MUTATION, where, f"was not changed, but should be: {_where(e.value, g.value)}", "kept")
            continue
        if j.numerics is not NumericalClass.PROPERTY:
            _judge_values(j, offset + i, e, g, j.prefix + where, j.numerics)
    _judge_gaps(j, originals)


def _held(j: _Judging, x: Tensor) -> Tensor | None:
    """What the device makes of `x` when it is copied there; None where it holds it as it is."""
    if not (x.is_floating_point() or x.is_complex()):
        return None
    formats = bounds.formats_for(x.dtype, j.capabilities)
    if not (formats.coarser or formats.flushes):
        return None
    return _representable(x, formats)


def _representable(x: Tensor, formats: bounds.DeviceFormats) -> Tensor:
    return _by_component(representable, x, formats.device, formats.dtype, flush_subnormals=formats.flushes)


def _by_component(rounding: Callable[..., Tensor], x: Tensor, *args: object, **kwargs: object) -> Tensor:
    parts = rounding(values.real(x).double(), *args, **kwargs)
    return _cast(torch.view_as_complex(parts) if x.is_complex() else parts, x.dtype)


def _kept(j: _Judging, before: Tensor, after: Tensor) -> bool:
    """Whether a call left a tensor as it was, on a device that may hold some of its elements in its own way."""
    if bits_equal(before, after):
        return True
    held = _held(j, before)
    if held is None or before.shape != after.shape:
        return False
    before, after, held = values.real(before), values.real(after), values.real(held)
    return not bool((values.differs(before, after) & values.differs(held, after)).any())


def _where(expected: Tensor, got: Tensor) -> str:
    wrong = values.differs(values.real(expected), values.real(got)).reshape(-1)
    i = int(wrong.to(torch.uint8).argmax())
    shape = values.real(expected).shape
    at = values.place(i, shape, expected.is_complex()) or "the scalar"
    e, g = values.real(expected).reshape(-1)[i].item(), values.real(got).reshape(-1)[i].item()
    return f"expected {e!r} and got {g!r} at {at}"


def _judge_gaps(j: _Judging, originals: Sequence[Tensor]) -> None:
    """Memory between and around the elements of an input must keep its bits."""
    covered: dict[int, Tensor] = {}
    for i, t in enumerate(originals):
        flat = j.reference.same.bases[i] if i < len(j.reference.same.bases) else None
        if flat is None or i >= len(j.result.bases) or j.result.bases[i] is None:
            continue
        address = t.untyped_storage().data_ptr()
        if address not in covered:
            covered[address] = torch.zeros(t.untyped_storage().nbytes(), dtype=torch.bool)
        size = t.element_size()
        mask = covered[address]
        strides = [s * size for s in t.stride()]
        mask.as_strided((*t.shape, size), (*strides, 1), t.storage_offset() * size).fill_(True)
    done: set[int] = set()
    for i, t in enumerate(originals):
        address = t.untyped_storage().data_ptr() if t.layout is torch.strided and not t.is_nested else 0
        if address not in covered or address in done or j.result.bases[i] is None:
            continue
        done.add(address)
        before = torch.empty(0, dtype=torch.uint8).set_(t.detach().untyped_storage())
        flat = j.result.bases[i]
        assert flat is not None
        after = flat.view(torch.uint8)
        if after.numel() != before.numel():
            continue  # the input was resized
        changed = ~covered[address] & (after != before)
        if bool(changed.any()) and before.numel() % t.element_size() == 0:
            held = _held(j, before.view(t.dtype))
            if held is not None:
                changed &= after != held.view(torch.uint8)
        if bool(changed.any()):
            where = f"{j.reference.same.inputs[i].path} after the call"
            j.add(Check.MUTATION, where, "memory outside its elements was overwritten", "out of bounds")


def _judge_gradients(j: _Judging) -> None:
    expected, got = j.reference.same.gradients, j.result.gradients
    offset = len(j.reference.same.outputs) + len(j.reference.same.inputs)
    if len(expected) != len(got):
        j.add(Check.GRADIENT, "output", f"expected {len(expected)} gradients and got {len(got)}", "number")
        return
    for i, (e, g) in enumerate(zip(expected, got, strict=True)):
        if e.opaque or g.opaque:
            j.add(Check.UNCOMPARABLE, e.path, e.opaque or g.opaque, "opaque")
            continue
        if e.value is None or g.value is None:
            _judge_absent(j, e, g)
            continue
        found = metadata.compare_leaf(e, g, j.prefix + e.path, j.device, j.reference, gradient=True)
        j.findings += found
        j.compared += 1
        if any(f.check in (Check.SHAPE, Check.DTYPE) for f in found):
            continue
        # The gradient of an exact or elementwise op is a sum over whatever was broadcast or selected.
        single = j.numerics in (NumericalClass.EXACT, NumericalClass.ELEMENTWISE)
        numerics = NumericalClass.COMPOSITE if single else j.numerics
        if numerics is not NumericalClass.PROPERTY:
            _judge_values(j, offset + i, e, g, j.prefix + e.path, numerics)
        elif complaint := compare_random(e.value, g.value, None, partial(limit_of_draws, j.reference, e.path)):
            j.add(Check.PROPERTY, e.path, complaint, "distribution")


def _judge_absent(j: _Judging, e: Leaf, g: Leaf) -> None:
    """No gradient and a gradient of zeros are the same thing; anything else is not."""
    present = e.value if e.value is not None else g.value
    if present is None or not bool((present != 0).any()):
        return
    said = "expected no gradient and got one" if e.value is None else "expected a gradient and got none"
    j.add(Check.GRADIENT, e.path, f"{said} that is not zero", "extra" if e.value is None else "missing")
