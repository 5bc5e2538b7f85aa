"""Inputs arrive on the device as they are on the CPU, and everything a call did comes back."""

import contextlib

import pytest
import torch

from conformance import trees
from conformance.calls import invoke, make_cotangent, prepare, run_call, run_sample
from conformance.cases import NumericalClass, Sample


def sample_of(fn, *args, replays=(), **kwargs):
    return Sample(0, fn, args, kwargs, NumericalClass.COMPOSITE, "", "", replays=replays)


def base():
    return torch.arange(24, dtype=torch.float32)


LAYOUTS = {
    "contiguous": lambda: base().reshape(4, 6),
    "transposed": lambda: base().reshape(4, 6).t(),
    "offset": lambda: base()[5:17].reshape(3, 4),
    "strided": lambda: base().reshape(4, 6)[:, ::2],
    "expanded": lambda: base()[:3].reshape(3, 1).expand(3, 4),
    "first row as every row": lambda: base().reshape(4, 6)[:1].expand(4, 6),
    "overlapping": lambda: base().as_strided((3, 4), (2, 1)),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels last of one channel": lambda: torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "scalar": lambda: torch.tensor(3.0),
    "empty": lambda: torch.empty(0, 3),
    "empty view with strides": lambda: base().as_strided((0, 3), (7, 2), 4),
    "conjugated": lambda: torch.randn(3, 4, dtype=torch.complex64).conj(),
    "conjugated view": lambda: torch.randn(3, 4, dtype=torch.complex64)[1:].conj().t(),
    "negated": lambda: torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "bfloat16": lambda: base().reshape(4, 6).bfloat16().t(),
    "bool": lambda: base() > 3,
    "parameter": lambda: torch.nn.Parameter(base().reshape(4, 6)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_inputs_are_copied_as_they_are(name):
    original = LAYOUTS[name]()
    prepared = prepare((original,), {}, direction="fwd")
    (made,) = prepared.tensors
    assert made is prepared.args[0]
    assert made is not original
    assert made.shape == original.shape
    assert made.stride() == original.stride()
    assert made.storage_offset() == original.storage_offset()
    assert made.dtype == original.dtype
    assert (made.is_conj(), made.is_neg()) == (original.is_conj(), original.is_neg())
    assert type(made) is type(original)
    assert made.requires_grad == original.requires_grad
    assert torch.equal(made.resolve_conj().resolve_neg(), original.detach().resolve_conj().resolve_neg())
    if original.numel():
        assert made.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()
        assert made.untyped_storage().nbytes() == original.untyped_storage().nbytes()


def test_sharing_between_inputs_is_kept():
    whole = base()
    prepared = prepare((whole, whole[2:5], [whole, torch.ones(2)]), {"x": whole.view(4, 6).t()}, direction="fwd")
    a, b, c, other, d = prepared.tensors
    assert a is c
    addresses = {t.untyped_storage().data_ptr() for t in (a, b, d)}
    assert len(addresses) == 1
    assert other.untyped_storage().data_ptr() not in addresses
    a[2] = 99.0
    assert b[0] == 99.0
    assert d[2, 0] == 99.0
    assert whole[2] == 2.0
    assert prepared.paths == ["args[0]", "args[1]", "args[2][0]", "args[2][1]", "kwargs['x']"]


def test_sharing_between_dtypes_is_kept():
    x = torch.ones(4)
    prepared = prepare((x, x.view(torch.int32)), {}, direction="fwd")
    prepared.tensors[0].zero_()
    assert prepared.tensors[1].tolist() == [0, 0, 0, 0]
    assert prepared.tensors[1].dtype is torch.int32


def test_what_the_callable_wants_on_the_cpu_stays_there():
    x, index = torch.ones(3), torch.tensor(2)
    prepared = prepare((x, [index]), {"y": x}, device="meta", direction="fwd", on_cpu=(1,))
    assert [t.device.type for t in prepared.tensors] == ["meta", "cpu", "meta"]
    assert prepared.args[1][0] is not index
    assert prepared.args[0] is prepared.kwargs["y"]


def test_values_that_are_no_tensors_are_kept_and_devices_follow():
    generator = torch.Generator().manual_seed(3)
    args = (3, "same", None, torch.float16, torch.Size([2]))
    prepared = prepare(
        args, {"device": "cpu", "where": torch.device("cpu"), "name": "cpu"}, device="meta", direction="fwd"
    )
    assert prepared.args == args
    assert prepared.kwargs == {"device": "meta", "where": torch.device("meta"), "name": "cpu"}
    assert prepare((3, "cpu", ["cpu"]), {}, device="meta", direction="fwd").args == (3, "meta", ["meta"])
    on_cpu = prepare((generator,), {}, direction="fwd").args[0]
    assert on_cpu is not generator
    assert torch.equal(on_cpu.get_state(), generator.get_state())


def test_gradients_are_taken_of_the_named_inputs():
    x, y, n = torch.randn(3), torch.randn(3), torch.arange(3)
    fn = lambda a, k, b: a * b + k  # noqa: E731
    both = run_call(fn, (x, n, y), {}, direction="bwd")
    assert [g.path for g in both.gradients] == ["args[0].grad", "args[2].grad"]
    (cotangent,) = both.cotangents
    torch.testing.assert_close(both.gradients[0].value, cotangent * y)
    only = run_call(fn, (x, n, y), {}, direction="bwd", differentiable=[2])
    assert [g.path for g in only.gradients] == ["args[2].grad"]
    as_they_come = run_call(fn, (x.clone().requires_grad_(), n, y), {}, direction="bwd")
    assert [g.path for g in as_they_come.gradients] == ["args[0].grad"]
    assert not x.requires_grad


def test_cotangents_of_the_reference_are_used():
    fn = lambda a: (a * 2, a.half().float() * 3)  # noqa: E731
    x = torch.randn(4)
    given = [torch.ones(4), torch.full((4,), 2.0)]
    result = run_call(fn, (x,), {}, direction="bwd", cotangents=given)
    assert result.gradients[0].value.tolist() == [8.0] * 4
    assert torch.equal(make_cotangent((3,), torch.bfloat16, 0), make_cotangent((3,), torch.bfloat16, 0))
    assert not torch.equal(make_cotangent((3,), torch.float32, 0), make_cotangent((3,), torch.float32, 1))


def test_an_unused_input_has_no_gradient():
    result = run_call(lambda a, b: a * 2, (torch.ones(2), torch.ones(2)), {}, direction="bwd")
    assert result.gradients[1].value is None


def test_metadata_aliases_and_identity():
    def fn(a, b):
        return a, a[1:], {"sum": a + b, "n": 3}

    result = run_call(fn, (torch.ones(3), torch.ones(3)), {}, direction="fwd")
    itself, view, fresh, number = result.outputs
    assert [leaf.path for leaf in result.outputs] == ["output[0]", "output[1]", "output[2]['sum']", "output[2]['n']"]
    assert result.structure == "(*, *, {'sum': *, 'n': *})"
    assert itself.same_object == 0
    assert view.same_object is None
    a, b = (leaf.meta.storage for leaf in result.inputs)
    assert (itself.meta.storage, view.meta.storage) == (a, a)
    assert fresh.meta.storage not in (a, b)
    assert view.meta.offset == 1
    assert (number.value, number.meta) == (3, None)
    assert result.tree[2]["sum"].tolist() == [2.0, 2.0, 2.0]


def test_inputs_after_the_call_and_the_memory_around_them():
    whole = torch.zeros(6)
    result = run_call(lambda a: a.add_(1), (whole[1:4],), {}, direction="fwd")
    assert result.inputs[0].value.tolist() == [1.0, 1.0, 1.0]
    assert result.bases[0].tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert whole.tolist() == [0.0] * 6


def test_random_numbers_repeat_and_warnings_are_kept():
    import warnings

    def fn():
        warnings.warn("beware", stacklevel=1)
        return torch.rand(3)

    first, second = (run_call(fn, (), {}, direction="fwd") for _ in range(2))
    assert torch.equal(first.outputs[0].value, second.outputs[0].value)
    assert first.warnings == ("beware",)


def test_around_sees_the_call_alone():
    log = []

    @contextlib.contextmanager
    def around():
        log.append("in")
        yield
        log.append("out")

    def fn(x):
        log.append("call")
        return x * 2

    prepared = prepare((torch.ones(2),), {}, direction="bwd")
    assert log == []
    invoke(prepared, fn, around=around)
    assert log == ["in", "call", "out"]


def test_replays_call_the_same_callable_and_show_overwritten_results():
    shared = torch.zeros(2)

    def reuses_its_memory(x):
        return shared.copy_(x)

    sample = sample_of(reuses_its_memory, torch.ones(2), replays=(((torch.full((2,), 5.0),), {}),))
    result = run_sample(reuses_its_memory, sample, direction="fwd")
    assert result.outputs[0].value.tolist() == [5.0, 5.0]  # the second call wrote into the first one's result
    assert result.tree.tolist() == [5.0, 5.0]
    assert len(result.replays) == 1
    right = run_sample(lambda x: x + 0, sample, direction="fwd")
    assert right.outputs[0].value.tolist() == [1.0, 1.0]
    assert right.replays[0].outputs[0].value.tolist() == [5.0, 5.0]


def test_sparse_becomes_dense_and_nested_says_that_it_cannot():
    sparse = run_call(lambda x: x.to_sparse(), (torch.eye(2),), {}, direction="fwd").outputs[0]
    assert sparse.value.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert sparse.meta.layout is torch.sparse_coo
    nested = run_call(
        lambda x: torch.nested.as_nested_tensor([x, x], layout=torch.jagged), (torch.ones(2),), {}, direction="fwd"
    )
    assert nested.outputs[0].value is None
    assert "nested" in nested.outputs[0].opaque


def test_an_exception_passes_through():
    with pytest.raises(RuntimeError, match="size of tensor"):
        run_call(torch.add, (torch.ones(2), torch.ones(3)), {}, direction="fwd")


def test_trees():
    named = torch.return_types.max((torch.tensor(1.0), torch.tensor(0)))
    tree = {"a": [1, (2, named)], "b": torch.Size([3])}
    paths = [path for path, _ in trees.flatten(tree, "x")]
    assert paths == ["x['a'][0]", "x['a'][1][0]", "x['a'][1][1][0]", "x['a'][1][1][1]", "x['b']"]
    doubled = trees.map_leaves(tree, lambda _path, leaf: leaf)
    assert type(doubled["a"][1][1]) is torch.return_types.max
    assert trees.structure(tree) == "{'a': [*, (*, (*, *))], 'b': *}"
