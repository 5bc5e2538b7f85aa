"""The table of numerical classes is complete, well formed, and true of PyTorch's own CPU kernels."""

import itertools
import warnings

import pytest
import torch

from conformance.cases import Direction, NumericalClass
from op_coverage import classes, defaults, inputs, properties, sources, upstream
from op_coverage.upstream import pytree

EXACT, ELEMENTWISE, PROPERTY = NumericalClass.EXACT, NumericalClass.ELEMENTWISE, NumericalClass.PROPERTY
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SAMPLES = 12  # of each op and dtype; the limits were set on all of them


def of(numerics: NumericalClass) -> list[str]:
    return [s for s, kind in classes.table().items() if kind.numerics is numerics and s in upstream.op_infos()]


def test_the_table_has_every_op_of_the_torch_it_was_written_for():
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"written for torch 2.13; without a class in {torch.__version__}: {classes.unclassified()}")
    assert classes.unclassified() == []
    assert set(classes.table()) <= set(upstream.op_infos()), "ops that this torch does not have"


def test_checks_and_defaults_that_the_table_names_exist():
    for kind in classes.table().values():
        for check in (kind.check, *(when.check for when in kind.when)):
            assert check is None or check in properties.CHECKS, kind
        assert kind.resolve is None or kind.resolve in defaults.RESOLVERS, kind
        assert kind.ulps is None or (len(kind.ulps) == 2 and 1 <= kind.ulps[1] <= kind.ulps[0] <= 16), kind


def test_an_op_without_a_class_is_composite():
    assert classes.lookup("an_op_of_the_future").numerics is NumericalClass.COMPOSITE


@pytest.mark.parametrize(
    ("subject", "args", "kwargs", "direction", "expected"),
    [
        ("add", (), {}, "fwd", "elementwise"),
        ("add", (), {"alpha": 2}, "fwd", "composite"),
        ("scatter", (), {"reduce": "add"}, "fwd", "composite"),
        ("scatter", (), {}, "fwd", "exact"),
        ("put", (0, 1, 2, True), {}, "fwd", "composite"),
        ("put", (0, 1, 2, False), {}, "fwd", "exact"),
        ("nn.functional.scaled_dot_product_attention", (), {"dropout_p": 0.5}, "bwd", "property"),
        ("nn.functional.scaled_dot_product_attention", (), {"dropout_p": 0.0}, "fwd", "composite"),
        ("sort", (), {}, "fwd", "property"),
        ("sort", (), {}, "bwd", "composite"),
        ("nn.functional.dropout", (), {}, "bwd", "property"),
        ("matmul", (), {}, "bwd", "contraction"),
    ],
)
def test_arguments_and_direction_choose_the_class(subject, args, kwargs, direction, expected):
    assert classes.lookup(subject).of_call(args, kwargs).numerics_of(Direction(direction)) == expected


BROKEN = {
    "unknown class": ('[[group]]\nabout = "a"\nclass = "exakt"\nops = ["x"]', "'exakt' is not a class"),
    "unknown key": ('[[group]]\nabout = "a"\nclass = "exact"\nop = ["x"]\nops = []', "unknown key 'op'"),
    "twice": (
        '[[group]]\nabout = "a"\nclass = "exact"\nops = ["x"]\n'
        '[[group]]\nabout = "b"\nclass = "composite"\nops = ["x"]',
        "group 'b': 'x' is in the table already, as exact",
    ),
    "no check": ('[[group]]\nabout = "a"\nclass = "property"\nops = ["x"]', "name a check"),
    "no limits": ('[[group]]\nabout = "a"\nclass = "elementwise"\nops = ["x"]', "give two limits"),
    "backward": ('[[group]]\nabout = "a"\nclass = "exact"\nbackward = "exact"\nops = ["x"]', "only property groups"),
    "no class": ('[[group]]\nabout = "a"\nops = ["x"]', "group 'a': no key 'class'"),
    "no group": ('[[when]]\nargument = "alpha"\nclass = "exact"\nops = ["x"]', "'x' is in no group"),
    "no toml": ("[[group", "not a TOML file"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_table_says_where_and_what(tmp_path, broken):
    text, message = BROKEN[broken]
    path = tmp_path / "classes.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"classes\.toml") as caught:
        classes.load(path)
    assert message in str(caught.value)


# --- the table against PyTorch's CPU kernels --------------------------------------------------------------------------


def wide(x):
    if isinstance(x, torch.Tensor):
        return x.double() if x.is_floating_point() else x.clone()
    return torch.float64 if x in FLOATS else x


def pairs(subject: str, dtype: torch.dtype):
    """(kind, result in the dtype, result in float64, result dtype) of the op's samples, by floating tensor."""
    info = upstream.op_infos()[subject]
    if dtype not in info.supported_dtypes("cpu"):
        return
    fn = sources.evaluate(sources.expression(info))
    for sample in itertools.islice(inputs.generate(info, dtype, requires_grad=False, seed=0), SAMPLES):
        kind = classes.lookup(subject).of_call(sample.args, sample.kwargs)
        exact_fn = defaults.resolved(kind.resolve, fn, dtype) if kind.resolve else fn
        call = (sample.args, sample.kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, call)
            narrow = fn(*args, **kwargs)
            args, kwargs = pytree.tree_map(wide, call)
            exact = exact_fn(*args, **kwargs)
        for a, b in zip(pytree.tree_leaves(narrow), pytree.tree_leaves(exact), strict=True):
            if isinstance(a, torch.Tensor) and a.layout is torch.strided and a.dtype in FLOATS:
                yield kind, a, b


def ulps(narrow: torch.Tensor, exact: torch.Tensor) -> float:
    limits = torch.finfo(narrow.dtype)
    finite = narrow.isfinite() & exact.isfinite() & (exact.abs() <= limits.max)
    if not bool(finite.any()):
        return 0.0
    exact, narrow = exact[finite], narrow[finite].double()
    exponent = torch.frexp(exact.abs().clamp(min=limits.smallest_normal)).exponent - 1
    unit = torch.ldexp(torch.full_like(exact, limits.eps), exponent)
    return float(((narrow - exact).abs() / unit).max())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_cpu_stays_below_the_elementwise_limits(dtype):
    over = []
    for subject in of(ELEMENTWISE):
        for kind, narrow, exact in pairs(subject, dtype):
            limit = kind.ulps_for(str(dtype).removeprefix("torch."))
            if kind.numerics is ELEMENTWISE and ulps(narrow, exact) > limit:
                over.append(f"{subject}: {ulps(narrow, exact):.2f} > {limit}")
    assert not over


NEEDS_ITS_DTYPE = {"nextafter", "as_strided", "as_strided.partial_views"}
"""The neighbour of a number is another one in float64; overlapping views are not copied by `wide`."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_exact_ops_give_the_float64_result_on_the_cpu(dtype):
    wrong = set()
    for subject in of(EXACT):
        if subject in NEEDS_ITS_DTYPE:
            continue
        for kind, narrow, exact in pairs(subject, dtype):
            if kind.numerics is EXACT and not torch.equal(narrow.nan_to_num(), exact.to(narrow.dtype).nan_to_num()):
                wrong.add(subject)
    assert not wrong


def test_the_limits_could_catch_an_op_that_loses_digits():
    x = torch.linspace(0.1, 3.0, 1000)
    careless = torch.exp(x.bfloat16().float())
    assert ulps(careless, torch.exp(x.double())) > classes.lookup("exp").ulps_for("float32")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_defaults_of_the_dtype_hold_in_the_float64_run(dtype):
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 1.0], dtype=dtype)
    fn = defaults.resolved("finite_limits", torch.nan_to_num, dtype)
    assert torch.equal(fn(x.double()), torch.nan_to_num(x).double())
    tiny = torch.full((1, 4), 1e-3, dtype=dtype)
    norm = defaults.resolved("epsilon", torch.nn.functional.rms_norm, dtype)
    assert torch.allclose(norm(tiny.double(), (4,)), torch.nn.functional.rms_norm(tiny, (4,)).double(), rtol=2e-3)


def test_rank_tolerance_is_that_of_the_dtype():
    a = torch.diag(torch.tensor([1.0, 1e-8]))  # the second singular value is below float32's tolerance only
    fn = defaults.resolved("rank_tolerance", torch.linalg.matrix_rank, torch.float32)
    assert int(fn(a.double())) == int(torch.linalg.matrix_rank(a)) == 1
    assert int(torch.linalg.matrix_rank(a.double())) == 2
    assert int(fn(a.double(), atol=1e-12, rtol=0.0)) == 2
