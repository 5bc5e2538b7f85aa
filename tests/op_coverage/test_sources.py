"""The expression of every op evaluates with only torch imported, and is the op."""

import itertools
import warnings

import pytest
import torch

from op_coverage import inputs, sources, upstream
from op_coverage.upstream import pytree

RUNNABLE = {
    subject: info
    for subject, info in upstream.op_infos().items()
    if info.supported_dtypes("cpu") and not upstream.is_cuda_jiterator(info.op)
}
SEED = 42  # with which OpInfo seeds its random ops


def clone(call):
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, call)


def equal(a, b) -> bool:
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and (a == b or a != a)
    if a.layout is not torch.strided:
        return equal(a.to_dense(), b.to_dense())
    if a.is_floating_point() and a.itemsize == 1:  # 8-bit formats have no comparisons
        return a.dtype == b.dtype and equal(a.float(), b.float())
    if a.is_complex():
        return a.dtype == b.dtype and equal(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj()))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def same(subject: str, info) -> bool:
    dtypes = info.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]
    ours = sources.evaluate(sources.expression(info))
    for sample in itertools.islice(inputs.generate(info, dtype, requires_grad=False, seed=0), 2):
        outcomes = []
        for fn in (ours, info.op):
            args, kwargs = clone((sample.args, sample.kwargs))
            torch.manual_seed(SEED)
            try:
                outcomes.append(pytree.tree_leaves(fn(*args, **kwargs)))
            except (RuntimeError, NotImplementedError, ValueError) as error:
                outcomes.append([str(error).splitlines()[0]])
        if len(outcomes[0]) != len(outcomes[1]) or not all(map(equal, *outcomes)):
            return False
    return True


UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def test_expressions_are_the_ops():
    """Held for 95 %; memory as it comes, and ops that OpInfo names wrongly, cannot agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = [s for s, info in RUNNABLE.items() if s not in UNDEFINED and not same(s, info)]
    assert wrong == ["rand_like"], wrong  # OpInfo calls randn_like there


def test_expressions_need_only_torch():
    needs_the_database = [s for s, info in RUNNABLE.items() if "op_db" in sources.expression(info)]
    assert len(needs_the_database) <= 0.05 * len(RUNNABLE), needs_the_database


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("add", "torch.add"),
        ("nn.functional.gelu", "torch.nn.functional.gelu"),
        ("linalg.norm.subgradients_at_zero", "torch.linalg.norm"),
        ("masked.sum", "torch.masked.sum"),
        ("nn.functional.dropout", "torch.nn.functional.dropout"),  # without OpInfo's seeding
        ("uniform", "torch.Tensor.uniform_"),
        ("einsum", "lambda tensors, equation: torch.einsum(equation, tensors)"),
        ("slice", "torch.ops.aten.slice.Tensor"),
        ("T", "lambda x: x.T"),
    ],
)
def test_expressions_read_as_one_would_write_them(subject, expected):
    assert sources.expression(upstream.op_infos()[subject]) == expected


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x, "lambda x: x"),
        (lambda x, *a, **k: torch.exp(x, *a, **k), "torch.exp"),
        (lambda x, y: torch.sub(y, x), "lambda x, y: torch.sub(y, x)"),
        (lambda x: pytest.approx(x), None),  # needs more than torch
        (len, None),
    ],
)
def test_lambdas_are_written_down_unless_they_need_more_than_torch(fn, expected):
    assert sources._from_lambda(fn) == expected


def test_two_lambdas_on_one_line_are_told_apart():
    pair = [lambda x: torch.sin(x) + 1, lambda x: torch.cos(x)]  # fmt: skip
    assert [sources._from_lambda(f) for f in pair] == ["lambda x: torch.sin(x) + 1", "torch.cos"]


def test_what_a_lambda_closes_over_cannot_be_written_down():
    captured = torch.zeros(3)
    assert sources._from_lambda(lambda x: x + captured) is None


def test_gradients_of_symmetric_problems_symmetrise_their_input():
    info = upstream.op_infos()["linalg.cholesky"]
    sample = next(inputs.generate(info, torch.float64, requires_grad=True, seed=0))
    fn = sources.evaluate(sources.backward_expression(info, sample.origin))
    x = sample.args[0].clone().requires_grad_()
    fn(x).sum().backward()
    assert torch.allclose(x.grad, x.grad.mH)
