"""Property checks accept what PyTorch's CPU gives and reject damage that matters."""

import itertools
import warnings

import pytest
import torch

from op_coverage import classes, inputs, properties, sources, upstream
from op_coverage.upstream import pytree

SUBJECTS = [s for s, kind in classes.table().items() if kind.check or any(w.check for w in kind.when)]


def clone(call):
    return pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, call)


def results(subject: str, dtype: torch.dtype, limit: int = 6):
    """(check, inputs, output, reference) with two runs of the op on the CPU, differently seeded."""
    info = upstream.op_infos()[subject]
    if dtype not in info.supported_dtypes("cpu"):
        return
    fn = sources.evaluate(sources.expression(info))
    for sample in itertools.islice(inputs.generate(info, dtype, requires_grad=False, seed=0), limit):
        kind = classes.lookup(subject).of_call(sample.args, sample.kwargs)
        if kind.check is None:
            continue
        outputs = []
        for seed in (1, 2):
            args, kwargs = clone((sample.args, sample.kwargs))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(seed)
                outputs.append(fn(*args, **kwargs))
        yield properties.CHECKS[kind.check], (sample.args, sample.kwargs), *outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_the_cpu_has_the_properties(dtype):
    complaints = []
    for subject in SUBJECTS:
        for check, call, output, reference in results(subject, dtype):
            complaint = check(subject, call, output, reference)
            if complaint:
                complaints.append(f"{subject}: {complaint}")
    assert not complaints


def put(t: torch.Tensor, value: float) -> torch.Tensor:
    """`t` with its last element replaced."""
    t = t.clone()
    t.view(-1)[-1] = value
    return t


X = torch.tensor([3.0, 1.0, 2.0, 1.0])
A = torch.tensor([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
WIDE = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
VALUES, INDICES = X.sort()
Q, R = torch.linalg.qr(A)
U, S, VH = torch.linalg.svd(A)
W, V = torch.linalg.eigh(A)
DROPPED = torch.nn.functional.dropout(WIDE, 0.5)
ONES = torch.ones(100)

DAMAGE = {
    # name: subject, args, kwargs, output, reference, part of the complaint
    "an element twice as large as kept": ("nn.functional.dropout", (WIDE, 0.5), {}, put(DROPPED, 9.0), None, "neither"),
    "dropout not scaled": ("nn.functional.dropout", (WIDE, 0.5), {}, DROPPED / 2, None, "neither"),
    "dropout outside training": (
        "nn.functional.dropout", (WIDE, 0.5, False), {}, torch.where(DROPPED == 0, 0.0, WIDE), None, "although"
    ),
    "half a channel dropped": (
        "nn.functional.dropout2d",
        (torch.ones(1, 2, 3, 3), 0.5),
        {},
        put(torch.full((1, 2, 3, 3), 2.0), 0.0),
        None,
        "in part",
    ),
    "far too many dropped": ("nn.functional.dropout", (WIDE, 0.5), {}, put(WIDE * 0, 0.0), None, "standard errors"),
    "dropped to zero": ("nn.functional.alpha_dropout", (X, 0.5, True), {}, X * 0, None, "neither"),
    "bernoulli of a half": ("bernoulli", (ONES * 0.5,), {}, ONES * 0.5, None, "possible outcome"),
    "certain event missed": ("bernoulli", (ONES,), {}, put(ONES, 0.0), None, "possible outcome"),
    "uniform below": ("uniform", (ONES, 1, 2), {}, put(torch.linspace(1, 2, 100), 0.5), None, "outside"),
    "normal of the wrong mean": (
        "normal.in_place", (WIDE, 5.0, 1.0), {}, WIDE.clone(), None, "standard errors"
    ),
    "a constant generator": ("randn", ((10,),), {}, torch.full((10,), 0.3), None, "all 10 numbers"),
    "not a number": ("randn", ((10,),), {}, put(torch.randn(10), float("nan")), None, "not finite"),
    "randint beyond": ("randint", (2, 10, (5,)), {}, torch.tensor([2, 3, 10, 4, 5]), None, "[2, 10)"),
    "drawn twice": ("multinomial", (ONES, 3), {}, torch.tensor([4, 7, 4]), None, "twice"),
    "drawn at zero": ("multinomial", (put(ONES, 0.0), 3), {}, torch.tensor([4, 7, 99]), None, "probability zero"),
    "slope out of bounds": (
        "nn.functional.rrelu", (-ONES,), {"training": True}, put(-ONES / 4, -0.5), None, "slope"
    ),
    "a value from elsewhere": (
        "nn.functional.fractional_max_pool2d",
        (torch.arange(16.0).reshape(1, 4, 4), 2),
        {"output_size": 1},
        torch.tensor([[[15.5]]]),
        None,
        "not in their channel",
    ),
    "swapped values": ("sort", (X,), {}, (VALUES.flip(0), INDICES), (VALUES, INDICES), "values differ"),
    "an index of a larger value": (
        "sort", (X,), {}, (VALUES, torch.tensor([1, 3, 0, 2])), (VALUES, INDICES), "do not lead"
    ),
    "an index twice": ("sort", (X,), {}, (VALUES, torch.tensor([1, 1, 2, 0])), (VALUES, INDICES), "twice"),
    "an index outside": ("argsort", (X,), {}, torch.tensor([1, 3, 2, 4]), INDICES, "outside"),
    "unstable where stable was asked for": (
        "sort", (X,), {"stable": True}, (VALUES, torch.tensor([3, 1, 2, 0])), (VALUES, INDICES), "unique for"
    ),
    "a value missing": ("unique", (X,), {"sorted": False}, torch.tensor([1.0, 3.0]), X.unique(), "set of values"),
    "a sign flipped": ("linalg.qr", (A,), {}, (-Q, R), (Q, R), "QR differs"),
    "Q not orthonormal": ("linalg.qr", (A,), {}, (2 * Q, R / 2), (Q, R), "orthonormal"),
    "R not triangular": ("linalg.qr", (A,), {}, (torch.eye(3), A), (Q, R), "triangular"),
    "a lost digit": ("linalg.svd", (A,), {}, (U, S.bfloat16().float(), VH), (U, S, VH), "singular values differ"),
    "vectors in another order": ("linalg.eigh", (A,), {}, (W, V.flip(-1)), (W, V), "differs from A"),
    "another shape": ("empty", ((2, 3),), {}, torch.empty(3, 2), torch.empty(2, 3), "float32[3, 2]"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_rejected(damage):
    subject, args, kwargs, output, reference, complaint = DAMAGE[damage]
    kind = classes.lookup(subject).of_call(args, kwargs)
    said = properties.CHECKS[kind.check](subject, (args, kwargs), output, reference)
    assert said is not None
    assert complaint in said


FREEDOM = {
    "ties in another order": ("sort", (X,), {}, (VALUES, torch.tensor([3, 1, 2, 0])), (VALUES, INDICES)),
    "columns with other signs": ("linalg.qr", (A,), {}, (-Q, -R), (Q, R)),
    "eigenvectors with other signs": ("linalg.eigh", (A,), {}, (W, -V), (W, V)),
    "singular vectors with other signs": ("linalg.svd", (A,), {}, (-U, S, -VH), (U, S, VH)),
    "another order of a set": ("unique", (X,), {"sorted": False}, torch.tensor([3.0, 1.0, 2.0]), X.unique()),
    "another draw": ("nn.functional.dropout", (WIDE, 0.5), {}, torch.nn.functional.dropout(WIDE, 0.5), DROPPED),
}


@pytest.mark.parametrize("freedom", FREEDOM)
def test_what_is_not_determined_is_accepted(freedom):
    subject, args, kwargs, output, reference = FREEDOM[freedom]
    assert properties.CHECKS[classes.lookup(subject).check](subject, (args, kwargs), output, reference) is None
