"""Compare everything about results but their values: type, dtype, shape, strides, device, aliasing, requires_grad."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from conformance import trees
from conformance.callables import driven, on_device
from conformance.calls import CallResult, Leaf, Meta, prepare
from conformance.judgement.findings import Check, Finding
from conformance.reference import Reference


def _sizes_matter(meta: Meta) -> bool:
    return 0 not in meta.shape


def strides_agree(expected: Meta, got: Meta) -> bool:
    """Whether strides are equal where they mean anything: dimensions of more than one element, of a nonempty tensor."""
    if expected.stride is None or got.stride is None or not _sizes_matter(expected):
        return True
    return all(n <= 1 or a == b for n, a, b in zip(expected.shape, expected.stride, got.stride, strict=True))


def compare_leaf(
    expected: Leaf, got: Leaf, where: str, device: str, reference: Reference, *, gradient: bool = False
) -> list[Finding]:
    """Findings about one tensor; both leaves are tensors.

    Strides, type and requires_grad of a gradient are not compared (no one relies on them), nor are the conj and neg
    bits of any result (whether a conjugate is lazy is an implementation detail, its sharing of memory is not).
    """
    e, g = expected.meta, got.meta
    assert e is not None
    assert g is not None
    found: list[Finding] = []

    def differ(check: Check, was: object, now: object) -> None:
        found.append(Finding(check, where, f"expected {check} {was} and got {now}", f"{was} -> {now}"))

    if e.kind is not g.kind and not gradient:
        found.append(
            Finding(
                Check.TYPE,
                where,
                f"expected a {e.kind.__name__} and got a {g.kind.__name__}",
                f"{e.kind.__name__} -> {g.kind.__name__}",
            )
        )
    if e.dtype != g.dtype:
        differ(Check.DTYPE, e.dtype, g.dtype)
    if e.layout != g.layout and not gradient:
        differ(Check.LAYOUT, e.layout, g.layout)
    if e.shape != g.shape:
        found.append(Finding(Check.SHAPE, where, f"expected shape {e.shape} and got {g.shape}", "shape"))
    elif reference.sample.strides and not gradient and not strides_agree(e, g):
        found.append(
            Finding(
                Check.STRIDES,
                where,
                f"expected strides {e.stride} and got {g.stride} for shape {e.shape}",
                f"{_form(e)} -> {_form(g)}",
            )
        )
    if g.device != device and not (g.device == "cpu" and _stays_on_cpu(reference, got.path)):
        differ(Check.DEVICE, device, g.device)
    if e.requires_grad != g.requires_grad and not gradient:
        differ(Check.REQUIRES_GRAD, e.requires_grad, g.requires_grad)
    return found


def _form(meta: Meta) -> str:
    """Name of a memory format, for the fingerprint."""
    strides = meta.stride or ()
    order = sorted((i for i, n in enumerate(meta.shape) if n > 1), key=lambda i: (-strides[i], i))
    if any(strides[i] == 0 for i in order):
        return "expanded"
    dense, size = True, 1
    for i in reversed(order):
        dense &= strides[i] == size
        size *= meta.shape[i]
    if not dense:
        return "strided"
    if order == sorted(order):
        return "contiguous"
    channels = [0, *range(2, len(meta.shape)), 1]
    return "channels last" if order == [i for i in channels if meta.shape[i] > 1] else "permuted"


def _stays_on_cpu(reference: Reference, path: str) -> bool:
    """Whether this output lies on the CPU wherever the inputs are (made by the callable itself from Python values).

    Found out with inputs on the meta device: what is on the CPU then is meant to be.
    """
    try:
        prepared = prepare(
            reference.args, reference.kwargs, direction="fwd", device="meta", on_cpu=reference.sample.on_cpu
        )
        call = driven(reference.sample, on_device(reference.sample.fn, "meta"))
        output = call(*prepared.args, **prepared.kwargs)
    except Exception:  # the op has no meta kernel: no such evidence
        return False
    made = {p: t.device.type for p, t in trees.flatten(output, "output") if isinstance(t, Tensor)}
    return made.get(path) == "cpu"


def compare_aliasing(expected: CallResult, got: CallResult, prefix: str) -> list[Finding]:
    """Which outputs share memory with which inputs and with each other, and which are an input itself."""
    found: list[Finding] = []
    for i, (e, g) in enumerate(zip(expected.outputs, got.outputs, strict=True)):
        if e.meta is None or g.meta is None:
            continue
        if e.same_object != g.same_object and e.same_object is not None:
            name = expected.inputs[e.same_object].path
            found.append(
                Finding(Check.ALIAS, prefix + e.path, f"expected the tensor {name} itself and got another", "identity")
            )
        if e.meta.storage is None or g.meta.storage is None:
            continue  # empty, or the device hides addresses
        found += _shared(e, g, expected.inputs, got.inputs, prefix)
        found += _shared(e, g, expected.outputs[:i], got.outputs[:i], prefix)
    return found


def _shared(e: Leaf, g: Leaf, expected: Sequence[Leaf], got: Sequence[Leaf], prefix: str) -> list[Finding]:
    found = []
    for other_e, other_g in zip(expected, got, strict=True):
        if other_e.meta is None or other_g.meta is None or None in (other_e.meta.storage, other_g.meta.storage):
            continue
        assert e.meta is not None
        assert g.meta is not None
        should = e.meta.storage == other_e.meta.storage
        does = g.meta.storage == other_g.meta.storage
        name = other_e.path
        if should and not does:
            found.append(
                Finding(Check.ALIAS, prefix + e.path, f"expected to share memory with {name}, but is a copy", "lost")
            )
        elif does and not should:
            found.append(
                Finding(
                    Check.ALIAS, prefix + e.path, f"shares memory with {name}, but should be a tensor of its own", "new"
                )
            )
        elif should and _sizes_matter(e.meta) and g.meta.shape == e.meta.shape:
            moved = e.meta.offset - other_e.meta.offset
            now = g.meta.offset - other_g.meta.offset
            if moved != now:
                found.append(
                    Finding(
                        Check.ALIAS,
                        prefix + e.path,
                        f"expected a view {moved} elements into {name} and got one {now} elements into it",
                        "offset",
                    )
                )
    return found
