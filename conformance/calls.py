"""Run one call on a device exactly as it would run on the CPU, and bring back everything that can be compared.

`prepare` copies the CPU inputs to the device without changing anything about them: strides, offsets, sharing between
inputs, expanded dimensions, conj and neg bits. `invoke` seeds, calls, differentiates and gathers. They are separate so
that what a caller puts `around` the invocation (a timer, an observer) does not see the copies.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from conformance import trees
from conformance.callables import Converter, driven
from conformance.cases import Direction, Sample

SEED = 20_240_229  # any fixed number: both sides draw the same random numbers where their generators agree


@dataclass(frozen=True, slots=True)
class Meta:
    """What a tensor is, apart from its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None  # None for layouts without strides
    offset: int
    device: str  # type alone: "cpu"
    requires_grad: bool
    is_conj: bool
    is_neg: bool
    layout: torch.layout
    kind: type  # torch.Tensor or a subclass
    storage: int | None  # address of the storage; None: empty, or the device does not tell


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of what a call returned, or one tensor input after the call.

    `value` is a CPU tensor of plain layout (dense, no conj or neg bit), or the plain Python value. `opaque` says why
    a tensor could not be brought back; its value is then None.
    """

    path: str
    value: Any
    meta: Meta | None = None  # None: not a tensor
    same_object: int | None = None  # index of the tensor input that this output is, as an object
    opaque: str = ""


@dataclass(frozen=True)
class CallResult:
    """All that one call did. Everything lies on the CPU; metadata is as it was on the device."""

    outputs: tuple[Leaf, ...]
    structure: str  # containers of the output, see trees.structure
    tree: Any  # the output with CPU values as leaves
    inputs: tuple[Leaf, ...]  # tensor inputs after the call, in flattening order
    bases: tuple[Tensor | None, ...]  # for each tensor input its whole memory after the call, where it has gaps
    gradients: tuple[Leaf, ...] = ()  # value None: the input got no gradient
    cotangents: tuple[Tensor, ...] = ()  # CPU, one for each differentiable output
    warnings: tuple[str, ...] = ()
    replays: tuple[CallResult, ...] = ()
    live: tuple[Tensor | None, ...] = field(default=(), repr=False)  # output tensors themselves, where asked to keep


@dataclass
class Prepared:
    """Inputs of one call, on the device."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    paths: list[str]  # of the tensor inputs, in flattening order
    tensors: list[Tensor]
    bases: list[Tensor | None]  # flat view of an input's whole storage, where the input does not fill it
    device: torch.device
    direction: Direction
    wrt: list[int]  # positions of tensors to differentiate with respect to


def is_differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def describe(t: Tensor) -> Meta:
    """Metadata of a tensor, without touching its values."""
    strided = t.layout is torch.strided and not t.is_nested
    storage = None
    if strided:
        try:
            storage = t.untyped_storage().data_ptr() or None
        except (RuntimeError, NotImplementedError):
            storage = None  # a subclass without storage, or a device that hides addresses
    return Meta(
        () if t.is_nested else tuple(t.shape),
        t.dtype,
        tuple(t.stride()) if strided else None,
        int(t.storage_offset()) if strided else 0,
        t.device.type,
        t.requires_grad,
        t.is_conj(),
        t.is_neg(),
        t.layout,
        type(t),
        storage,
    )


def to_host(t: Tensor, *, copy: bool = True) -> tuple[Tensor | None, str]:
    """(dense CPU tensor without lazy bits, "") or (None, why it cannot be had). Sparse layouts become dense."""
    t = t.detach()
    if t.is_nested:
        return None, "nested tensors cannot be compared"
    try:
        if t.layout is not torch.strided:
            t, copy = t.cpu().to_dense(), False
        if t.is_quantized:
            t, copy = t.cpu().dequantize(), False
    except (RuntimeError, NotImplementedError) as error:
        return None, f"layout {t.layout} cannot be made dense: {str(error).splitlines()[0]}"
    if t.is_conj() or t.is_neg():
        t, copy = t.resolve_conj().resolve_neg(), False
    if t.device.type != "cpu":
        return t.cpu(), ""
    return (t.clone() if copy else t), ""


# --- inputs ---------------------------------------------------------------------------------------------------------


def _flat(t: Tensor) -> Tensor:
    """The whole storage of `t` as a 1-d tensor of its dtype, physical values (conj and neg bits ignored)."""
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage())


def _restore_bits(physical: Tensor, like: Tensor) -> Tensor:
    """`physical` (same memory layout as `like`) with the conj and neg bits of `like`."""
    if like.is_neg():
        return _negative_view(physical, like)
    return physical.conj() if like.is_conj() else physical


def _negative_view(physical: Tensor, like: Tensor) -> Tensor:
    # The public way to a neg bit is the imaginary part of a conjugate view, which is also how users come by one.
    pairs = {torch.float32: torch.complex64, torch.float64: torch.complex128, torch.float16: torch.complex32}
    storage_is_even = like.untyped_storage().nbytes() % (2 * like.element_size()) == 0
    strides_are_even = all(s % 2 == 0 for s in like.stride())
    if like.dtype in pairs and storage_is_even and strides_are_even and like.storage_offset() % 2:
        whole = _flat(physical).view(pairs[like.dtype])
        half = whole.as_strided(like.shape, [s // 2 for s in like.stride()], (like.storage_offset() - 1) // 2)
        return half.conj().imag
    return physical.neg()  # a layout that no public operation makes: keep the values, drop the bit


def _fills_storage(t: Tensor) -> bool:
    """Whether each element of the storage is exactly one element of `t`. Equal sizes are not enough: the first row of
    a matrix, expanded to all rows, has as many elements as the matrix."""
    step = 1
    for stride, size in sorted((stride, size) for stride, size in zip(t.stride(), t.shape, strict=True) if size != 1):
        if stride != step:
            return False
        step *= size
    return t.storage_offset() == 0 and t.numel() * t.element_size() == t.untyped_storage().nbytes()


class _Copier:
    """Copies tensors to a device so that tensors that shared memory share it again."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device, convert: Converter | None) -> None:
        self.device = device
        self.convert = convert
        self.flat: dict[tuple[int, torch.dtype], Tensor] = {}
        users: dict[int, int] = {}
        for t in tensors:
            if t.layout is torch.strided and not t.is_nested:
                address = t.untyped_storage().data_ptr()
                users[address] = users.get(address, 0) + 1
        self.users = users
        self.objects: dict[int, tuple[Tensor, Tensor | None]] = {}

    def copy(self, t: Tensor) -> tuple[Tensor, Tensor | None]:
        """(tensor on the device, flat view of its storage where it does not fill it). One object in, one object out."""
        if id(t) not in self.objects:
            self.objects[id(t)] = self._copy(t)
        return self.objects[id(t)]

    def _to_device(self, t: Tensor) -> Tensor:
        converted = t if self.convert is None else self.convert(t)
        return converted.to(self.device, copy=converted is t)

    def _copy(self, t: Tensor) -> tuple[Tensor, Tensor | None]:
        source = t.detach()
        if t.layout is not torch.strided or t.is_nested or t.is_quantized:
            made = self._to_device(source.clone())
            return made.requires_grad_(t.requires_grad), None
        base = None
        address = t.untyped_storage().data_ptr()
        alone = self.users[address] == 1 or address == 0
        if alone and not t.is_conj() and not t.is_neg() and _fills_storage(t):
            made = self._to_device(source)
            if made.stride() != t.stride():
                made = torch.empty_strided(t.shape, t.stride(), dtype=made.dtype, device=self.device).copy_(made)
        else:
            # Converted values have another size, so that views in several dtypes cannot go on sharing.
            key = (address, t.dtype if self.convert is not None else torch.uint8)
            base = self.flat.get(key)
            if base is None:
                base = self.flat[key] = self._to_device(_flat(source))
            typed = base if self.convert is not None or base.dtype == t.dtype else base.view(torch.uint8).view(t.dtype)
            made = _restore_bits(typed.as_strided(t.shape, t.stride(), t.storage_offset()), t)
        if isinstance(t, torch.nn.Parameter):
            return torch.nn.Parameter(made, requires_grad=t.requires_grad), base
        if t.requires_grad:
            made = made.detach().requires_grad_(True)  # a leaf, whatever it was made of
        return made, base


def _move_value(path: str, leaf: Any, device: torch.device, convert: Converter | None) -> Any:
    if isinstance(leaf, torch.Generator):
        if leaf.device.type == device.type:
            return leaf.clone_state()
        return torch.Generator(device).manual_seed(leaf.initial_seed())
    if isinstance(leaf, torch.device) and leaf.type == "cpu":
        return device
    if isinstance(leaf, str) and leaf == "cpu" and (path.endswith("['device']") or not path.endswith("']")):
        return str(device)  # a device by name, as keyword or by position
    return leaf if convert is None else convert(leaf)


def prepare(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    direction: Direction | str,
    device: str | torch.device = "cpu",
    differentiable: Sequence[int] | None = None,
    on_cpu: Sequence[int] = (),
    convert: Converter | None = None,
) -> Prepared:
    """Fresh copies of the inputs on `device`, but for those at the positions `on_cpu` among all tensor inputs; the
    inputs themselves are never touched.

    In the backward direction the floating and complex tensors named by `differentiable` (positions among all tensor
    inputs) require gradients; with `None`, those that come so, and if none does, all of them. A CPU device among the
    values, and a generator, become the device's. `convert` substitutes every leaf (for the reference's float64 runs).
    """
    direction, target = Direction(direction), torch.device(device)
    leaves = [*trees.flatten(tuple(args), "args"), *trees.flatten(dict(kwargs), "kwargs")]
    found = [(path, leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]
    copier = _Copier([t for i, (_, t) in enumerate(found) if i not in on_cpu], target, convert)
    at_home = _Copier([t for i, (_, t) in enumerate(found) if i in on_cpu], torch.device("cpu"), convert)
    tensors: list[Tensor] = []
    bases: list[Tensor | None] = []

    def move(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return _move_value(path, leaf, target, convert)
        made, base = (at_home if len(tensors) in on_cpu else copier).copy(leaf)
        tensors.append(made)
        bases.append(base)
        return made

    moved_args = trees.map_leaves(tuple(args), move, "args")
    moved_kwargs = trees.map_leaves(dict(kwargs), move, "kwargs")
    wrt: list[int] = []
    if direction is Direction.BACKWARD:
        candidates = [i for i, t in enumerate(tensors) if is_differentiable(t)]
        if differentiable is not None:
            wrt = [i for i in candidates if i in set(differentiable)]
        else:
            wrt = [i for i in candidates if tensors[i].requires_grad] or candidates
        for i in candidates:
            tensors[i].requires_grad_(i in wrt)
    return Prepared(moved_args, moved_kwargs, [p for p, _ in found], tensors, bases, target, direction, wrt)


# --- the call -------------------------------------------------------------------------------------------------------


def make_cotangent(shape: Sequence[int], dtype: torch.dtype, position: int) -> Tensor:
    """Gradient of a made-up loss with respect to output `position`: normal numbers, the same on every machine."""
    generator = torch.Generator().manual_seed(SEED + 1 + position)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(tuple(shape), dtype=wide, generator=generator).to(dtype)


def _seed(device: torch.device, seed: int) -> None:
    """Seeds the generators of the CPU and of `device`.

    Not `torch.manual_seed`: for each accelerator that is not in use it formats a stack trace and keeps it for later,
    which costs more than a small op and grows with every call.
    """
    torch.default_generator.manual_seed(seed)
    if device.type not in ("cpu", "meta"):
        module = getattr(torch, device.type, None)
        seeded = getattr(module, "manual_seed_all", None) or getattr(module, "manual_seed", None)
        if seeded is not None:
            seeded(seed)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        wait = getattr(getattr(torch, device.type, None), "synchronize", None)
        if wait is not None:
            wait()


def _differentiable_outputs(leaves: Sequence[Any]) -> list[Tensor]:
    return [t for t in leaves if isinstance(t, Tensor) and t.requires_grad and is_differentiable(t)]


def _cotangents_for(outputs: Sequence[Tensor], given: Sequence[Tensor] | None) -> list[Tensor]:
    """On the CPU; `given` ones where they fit, so that every run of a sample uses the same numbers."""
    made = []
    for i, t in enumerate(outputs):
        if given is not None and i < len(given) and given[i].shape == t.shape:
            made.append(given[i] if given[i].dtype == t.dtype else given[i].to(t.dtype))
        else:
            made.append(make_cotangent(t.shape, t.dtype, i))
    return made


def invoke(
    prepared: Prepared,
    fn: Callable[..., Any],
    *,
    around: Callable[[], AbstractContextManager[Any]] | None = None,
    cotangents: Sequence[Tensor] | None = None,
    keep_live: bool = False,
    copy: bool = True,
    seed: int = SEED,
) -> CallResult:
    """Calls `fn` once on prepared inputs and gathers what came of it.

    `around()` is entered around the call, its backward pass and the device's synchronisation, and nothing else.
    `cotangents` are CPU tensors to use in the backward direction (those of the reference), as far as they fit.
    Without `copy`, outputs on the CPU are not copied: for a callable that nobody will call again. Whatever `fn` raises
    passes through.
    """
    _seed(prepared.device, seed)
    early = None
    if cotangents is not None and prepared.direction is Direction.BACKWARD:
        early = [c.to(prepared.device) for c in cotangents]  # moved before the clock starts
    grads: Sequence[Tensor | None] = ()
    used: list[Tensor] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with around() if around is not None else contextlib.nullcontext():
            output = fn(*prepared.args, **prepared.kwargs)
            leaves = list(trees.flatten(output, "output"))
            if prepared.direction is Direction.BACKWARD:
                outputs = _differentiable_outputs([leaf for _, leaf in leaves])
                if outputs and prepared.wrt:
                    used = _cotangents_for(outputs, early)
                    grads = torch.autograd.grad(
                        outputs,
                        [prepared.tensors[i] for i in prepared.wrt],
                        [c.to(t.device) for c, t in zip(used, outputs, strict=True)],
                        allow_unused=True,
                    )
            _synchronize(prepared.device)
    inputs_by_id = {id(t): i for i, t in reversed(list(enumerate(prepared.tensors)))}
    gathered = [_leaf(path, leaf, inputs_by_id, copy=copy) for path, leaf in leaves]
    values = iter(gathered)
    tree = trees.map_leaves(output, lambda _path, _leaf: next(values).value)
    return CallResult(
        outputs=tuple(gathered),
        structure=trees.structure(output),
        tree=tree,
        inputs=tuple(_leaf(path, t, {}, copy=False) for path, t in zip(prepared.paths, prepared.tensors, strict=True)),
        bases=tuple(None if b is None else b.cpu() for b in prepared.bases),
        gradients=tuple(
            Leaf(f"{prepared.paths[i]}.grad", None) if g is None else _leaf(f"{prepared.paths[i]}.grad", g, {})
            for i, g in zip(prepared.wrt, grads, strict=False)
        ),
        cotangents=tuple(c.cpu() for c in used),
        warnings=tuple(str(w.message).splitlines()[0][:300] if str(w.message) else "" for w in caught),
        live=tuple(leaf if isinstance(leaf, Tensor) else None for _, leaf in leaves) if keep_live else (),
    )


def _leaf(path: str, leaf: Any, inputs_by_id: Mapping[int, int], *, copy: bool = True) -> Leaf:
    if not isinstance(leaf, Tensor):
        return Leaf(path, leaf)
    meta = describe(leaf)
    value, why = to_host(leaf, copy=copy)
    return Leaf(path, value, meta, inputs_by_id.get(id(leaf)), why)


def run_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    direction: Direction | str,
    device: str | torch.device = "cpu",
    differentiable: Sequence[int] | None = None,
    around: Callable[[], AbstractContextManager[Any]] | None = None,
    cotangents: Sequence[Tensor] | None = None,
) -> CallResult:
    """`prepare` and `invoke` in one."""
    prepared = prepare(args, kwargs, direction=direction, device=device, differentiable=differentiable)
    return invoke(prepared, fn, around=around, cotangents=cotangents)


def run_sample(
    fn: Callable[..., Any],
    sample: Sample,
    *,
    direction: Direction | str,
    device: str | torch.device = "cpu",
    around: Callable[[], AbstractContextManager[Any]] | None = None,
    cotangents: Sequence[Sequence[Tensor]] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> CallResult:
    """Runs the judged call through `fn` (the compiled callable) on the sample's inputs and on each of its replays.

    `cotangents`: those of the reference, for the first call and each replay (`Reference.cotangents`). `enough` is asked
    after each call; once it is true, the replays that are left are not run, and have no result. The output
    tensors of the first call are looked at again after the last replay: if a later call wrote into them, the returned
    values are the overwritten ones and the judge sees it.
    """
    calls = [(sample.args, sample.kwargs), *sample.replays]
    call = driven(sample, fn)
    direction = Direction.FORWARD if sample.drive is not None else Direction(direction)
    ready = [
        prepare(a, k, direction=direction, device=device, differentiable=sample.differentiable, on_cpu=sample.on_cpu)
        for a, k in calls
    ]
    results = []
    for i, prepared in enumerate(ready):
        given = cotangents[i] if cotangents is not None and i < len(cotangents) else None
        results.append(invoke(prepared, call, around=around, cotangents=given, keep_live=len(ready) > 1))
        if enough():
            break
    if len(results) == 1:
        return results[0]
    first, *later = (_reread(r) for r in results)
    return replace(first, replays=tuple(replace(r, live=()) for r in later), live=())


def _reread(result: CallResult) -> CallResult:
    """The result with output values as they are now, after all calls."""
    outputs = []
    for leaf, live in zip(result.outputs, result.live, strict=True):
        if live is None or leaf.opaque:
            outputs.append(leaf)
        else:
            outputs.append(replace(leaf, value=to_host(live)[0]))
    values = iter(outputs)
    tree = trees.map_leaves(result.tree, lambda _path, _leaf: next(values).value)
    return replace(result, outputs=tuple(outputs), tree=tree)
