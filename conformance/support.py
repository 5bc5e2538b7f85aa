"""How a backend runs an op, decided from what was seen to run. Pure.

The rules, in this order; the first that holds decides:

1. something ran on the host                                             -> fallback
2. an op never reached the compiler, because the graph broke or there
   was none: it ran eagerly                                              -> fallback, unless the backend has a device of
   its own, counts host fallbacks and counted none: then the device's own eager kernel ran -> custom
3. a hand-written kernel ran                                             -> custom
4. eager dispatches to views and metadata alone: no kernel is needed     -> native
5. the backend does not say what it lowered                              -> unknown (None)
6. everything that eager dispatches to was lowered as itself             -> native
7. otherwise something was rewritten, or folded away                     -> decomposed

"As itself" means the same operator: in-place, out= and scalar overloads of one operator are the same, because
functionalisation turns them into each other without changing what is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from conformance.outcomes import Support

VIEWS = frozenset(
    """
    alias as_strided detach diagonal expand expand_as lift_fresh movedim narrow permute real imag select slice
    split split_with_sizes squeeze t transpose unbind unfold unsqueeze values indices crow_indices col_indices
    ccol_indices row_indices chunk view view_as view_as_real view_as_complex _reshape_alias _unsafe_view _conj
    _neg_view _test_autograd_multiple_dispatch_view swapaxes swapdims moveaxis numpy_T mT mH H adjoint unflatten
    flatten tensor_split hsplit vsplit dsplit positive resolve_conj resolve_neg is_same_size size stride dim
    numel sym_size sym_stride sym_numel sym_storage_offset sym_is_contiguous _nested_view_from_buffer
    _nested_view_from_jagged _nested_get_values _indices _values _fw_primal _make_dual _unpack_dual
    broadcast_to conj linalg_diagonal matrix_H slice_inverse _sparse_broadcast_to
    """.split()  # noqa: SIM905
)
"""Operators that return an alias of their input or look at metadata alone. A test holds it against torch's schemas."""


def operator(name: str) -> str:
    """The operator of an overload however it is written, without the in-place underscore.

    `aten::add_.Tensor`, `aten.add.Tensor` and `aten::add` are all `aten::add`.
    """
    namespace, colons, rest = name.partition("::")
    if not colons:
        namespace, _, rest = name.partition(".")
    base = rest.partition(".")[0]
    if base.endswith("_") and not base.endswith("__"):
        base = base[:-1]
    return f"{namespace}::{base}"


def computes(name: str) -> bool:
    """Whether an overload needs a kernel: it is neither a view nor a look at metadata."""
    namespace, _, base = operator(name).partition("::")
    return not (namespace == "aten" and base in VIEWS)


def support_of(
    eager_ops: Collection[str],
    lowered: Mapping[str, int] | None,
    fallbacks: Mapping[str, int] | None,
    custom_kernels: Mapping[str, int] | None,
    kernels: int | None,
    breaks: int,
    *,
    graphs: int | None = None,
    own_device: bool = True,
) -> Support | None:
    """`Support` of an op that ran and was right; None where the evidence does not say.

    `eager_ops` are the overloads that eager dispatches to (`observe.eager_ops`), the next four are what the backend saw
    (None: it cannot tell), `breaks` and `graphs` the numbers of graph breaks and compiled graphs. A backend without its
    `own_device` takes CPU tensors, and what it does not compile is run by PyTorch. See the rules above.
    """
    needed = {operator(name) for name in eager_ops if computes(name)}
    reached = {operator(name) for name in lowered or ()}
    if any((fallbacks or {}).values()):
        return Support.FALLBACK
    # A device of its own that tells nothing may well have run it: only its absence from the compiler is known.
    unseen = needed - reached if lowered is not None or (graphs == 0 and not own_device) else set()
    if (breaks or graphs == 0) and unseen:
        return Support.CUSTOM if own_device and fallbacks is not None else Support.FALLBACK
    if any((custom_kernels or {}).values()):
        return Support.CUSTOM
    if eager_ops and not needed:
        return Support.NATIVE
    if lowered is None:
        return None
    return Support.NATIVE if needed <= reached and (kernels or reached) else Support.DECOMPOSED
