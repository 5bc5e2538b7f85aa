"""Inputs of a call as Python source that needs only torch, bit for bit.

Small tensors are written out, larger ones as their compressed bytes. Strides, offsets, memory shared between inputs and
tensors passed twice stay as they are.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.repro import CannotRepro

WRITTEN_OUT = 24  # elements; more are shorter as bytes
LARGEST = 4 * 2**20  # bytes of one tensor's memory


class NotWritable(CannotRepro):
    """An input that has no source; the message says which and why."""


Call = tuple[Sequence[Any], Mapping[str, Any]]


class Source:
    """Statements that make the tensors, and one expression for each call. The code uses the name `device`."""

    def __init__(
        self, calls: Iterable[Call], differentiable: Iterable[Sequence[int]] = (), on_cpu: Sequence[int] = ()
    ) -> None:
        """`differentiable`: for each call the positions, among its tensors, of those that require gradients. `on_cpu`:
        in every call the positions of those that are not on the device."""
        self.statements: list[str] = []
        self._names: dict[int, str] = {}  # id of a tensor -> its variable
        self._bases: dict[int, tuple[str, torch.dtype]] = {}  # address of shared memory -> its variable
        calls = [(tuple(args), dict(kwargs)) for args, kwargs in calls]
        self._keep = [t for call in calls for t in _tensors(call)]  # ids and addresses stay theirs
        users: dict[int, set[int]] = {}
        for t in self._keep:
            if _plain(t) and t.untyped_storage().nbytes():
                users.setdefault(t.untyped_storage().data_ptr(), set()).add(id(t))
        self._shared = {address for address, ids in users.items() if len(ids) > 1}
        wanted = list(differentiable)
        self.calls = []
        for number, (args, kwargs) in enumerate(calls):
            positions = set(wanted[number]) if number < len(wanted) else set()
            for position, t in enumerate(_tensors((args, kwargs))):
                self._name(t, position in positions, position in on_cpu)
            items = ", ".join(f"{key!r}: {self._value(item, key)}" for key, item in kwargs.items())
            self.calls.append(f"({self._value(args)}, {{{items}}})")

    def _name(self, t: Tensor, differentiable: bool, on_cpu: bool) -> None:
        if id(t) in self._names:
            return
        name = f"t{len(self._names)}"
        source = self._tensor(t) + (".cpu()" if on_cpu else "")
        if isinstance(t, torch.nn.Parameter):
            source = f"torch.nn.Parameter({source}, requires_grad={differentiable or t.requires_grad})"
        elif differentiable or t.requires_grad:
            source += ".requires_grad_()"
        self.statements.append(f"{name} = {source}")
        self._names[id(t)] = name

    def _tensor(self, t: Tensor) -> str:
        if type(t) not in (Tensor, torch.nn.Parameter):
            raise NotWritable(f"an input is a {type(t).__name__}, a subclass of Tensor")
        if t.is_nested:
            parts = ", ".join(self._tensor(part) for part in t.unbind())
            return f"torch.nested.nested_tensor([{parts}], layout={t.layout})"
        if t.is_quantized:
            raise NotWritable("an input is quantized")
        if t.layout is torch.sparse_coo:
            t = t.detach().coalesce()
            parts = f"{self._tensor(t.indices())}, {self._tensor(t.values())}, {tuple(t.shape)}"
            return f"torch.sparse_coo_tensor({parts}).coalesce()"
        if t.layout is not torch.strided:
            by_row = t.layout in (torch.sparse_csr, torch.sparse_bsr)
            compressed, plain = (t.crow_indices(), t.col_indices()) if by_row else (t.ccol_indices(), t.row_indices())
            parts = ", ".join(self._tensor(part.detach()) for part in (compressed, plain, t.values()))
            return f"torch.sparse_compressed_tensor({parts}, {tuple(t.shape)}, layout={t.layout})"
        return self._strided(t.detach())

    def _strided(self, t: Tensor) -> str:
        if t.is_neg():  # no public constructor makes the lazy bit: keep the values
            t = t.resolve_neg()
        if t.numel() == 0:
            return f"torch.empty_strided({tuple(t.shape)}, {tuple(t.stride())}, dtype={t.dtype}, device=device)"
        storage = t.untyped_storage()
        fills = t.storage_offset() == 0 and storage.nbytes() == t.numel() * t.element_size()
        usual = t.stride() == torch.empty(t.shape, device="meta").stride()  # also along dimensions of one element
        if storage.data_ptr() not in self._shared and fills and usual and not t.is_conj():
            return _dense(t)
        address, nbytes = storage.data_ptr(), storage.nbytes()
        if nbytes > LARGEST:
            raise NotWritable(
                f"an input has {nbytes / 2**20:.0f} MiB of memory, at most {LARGEST // 2**20} are written"
            )
        view = f".as_strided({tuple(t.shape)}, {tuple(t.stride())}, {t.storage_offset()})"
        if address in self._shared:
            if address not in self._bases:
                self._bases[address] = (f"base{len(self._bases)}", t.dtype)
                flat = torch.empty(0, dtype=t.dtype).set_(storage)
                self.statements.append(f"{self._bases[address][0]} = {_dense(flat)}")
            base, dtype = self._bases[address]
            base += f".view({t.dtype})" if dtype != t.dtype else ""
        else:
            base = _dense(torch.empty(0, dtype=t.dtype).set_(storage))
        return base + view + (".conj()" if t.is_conj() else "")

    def _value(self, value: Any, key: str = "") -> str:
        """Any argument; `key` is the name under which it is passed."""
        if isinstance(value, Tensor):
            return self._names[id(value)]
        if isinstance(value, torch.Size):
            return f"torch.Size({list(value)})"
        if isinstance(value, tuple):
            return "(" + "".join(f"{self._value(item)}, " for item in value).rstrip() + ")"
        if isinstance(value, list):
            return "[" + ", ".join(map(self._value, value)) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self._value(v)}" for k, v in value.items()) + "}"
        if isinstance(value, torch.device):
            return "torch.device(device)" if value.type == "cpu" else repr(value)
        if isinstance(value, torch.Generator):
            return f"torch.Generator(device).manual_seed({value.initial_seed()})"
        if isinstance(value, str) and value == "cpu" and key in ("device", ""):  # a device by name
            return "device"
        return plain(value)


def plain(value: Any) -> str:
    """A value without tensors. Raises `NotWritable` for one whose text is not its source."""
    if value is Ellipsis:
        return "..."
    if value is None or isinstance(value, bool | int | str | bytes | torch.dtype | torch.layout | torch.memory_format):
        return repr(value)
    if isinstance(value, float):
        return repr(value)  # nan and inf are names that the script defines
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, slice):
        return f"slice({plain(value.start)}, {plain(value.stop)}, {plain(value.step)})"
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}([{', '.join(map(plain, value))}])"
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if callable(value) and (module or "").split(".")[0] in ("torch", "builtins") and name.isidentifier():
        return f"{module}.{name}" if module != "builtins" else name
    raise NotWritable(f"an argument is a {type(value).__module__}.{type(value).__qualname__}, which has no source")


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    if isinstance(value, tuple | list):
        return [t for item in value for t in _tensors(item)]
    return []


def _plain(t: Tensor) -> bool:
    return t.layout is torch.strided and not t.is_nested and not t.is_quantized


def _dense(t: Tensor) -> str:
    """A contiguous tensor that fills its memory."""
    if t.numel() > WRITTEN_OUT or not _written_exactly(t):
        return _packed(t) + ("" if t.dim() == 1 else f".reshape({tuple(t.shape)})")
    return f"torch.tensor({_nested(t.tolist())}, dtype={t.dtype}, device=device)"


def _nested(value: Any) -> str:
    return "[" + ", ".join(map(_nested, value)) + "]" if isinstance(value, list) else plain(value)


def _written_exactly(t: Tensor) -> bool:
    """Whether the text gives the same bits: not for other NaN than the usual one, nor for exotic dtypes."""
    if t.is_complex():
        return _written_exactly(torch.view_as_real(t))
    try:
        again = torch.tensor(_usual(t.tolist()), dtype=t.dtype)
        return torch.equal(again.reshape(-1).view(torch.uint8), t.reshape(-1).view(torch.uint8))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False


def _usual(value: Any) -> Any:
    """The same values with the NaN that the text `nan` stands for."""
    if isinstance(value, list):
        return [_usual(item) for item in value]
    return math.nan if value != value else value


def _packed(t: Tensor) -> str:
    """The memory of a contiguous tensor, as a 1-d tensor of its dtype."""
    raw = t.reshape(-1).view(torch.uint8).numpy().tobytes()
    if len(raw) > LARGEST:
        raise NotWritable(f"an input has {len(raw) / 2**20:.0f} MiB, at most {LARGEST // 2**20} are written")
    return f'unpack("{base64.b64encode(zlib.compress(raw, 9)).decode()}", {t.dtype}, device)'
