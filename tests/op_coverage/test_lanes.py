"""The lanes beyond OpInfo's samples: which ops have them, and that each varies what it says."""

import pytest
import torch

from conformance import calls
from conformance.cases import Case, Direction, Options, ShapeMode, Tier
from op_coverage import suite as module
from op_coverage import upstream
from op_coverage.suite import LANES, OpSuite

SUITE = OpSuite()


def samples(subject: str, lane: str, dtype: str = "float32"):
    case, _ = Case.parse(f"op:{subject}:{dtype}:static:fwd:{lane}")
    return list(SUITE.samples(case, Options(tier=Tier.NIGHTLY)))


def shapes(subject: str, lane: str):
    return [tuple(s.args[0].shape) for s in samples(subject, lane)]


def test_nightly_has_all_lanes_and_the_other_tiers_opinfos_samples():
    for tier in Tier:
        lanes = {c.lane for c in SUITE.cases(Options(tier=tier))}
        assert lanes == (set(LANES) if tier is Tier.NIGHTLY else {"samples"})
    assert {c.lane for c in SUITE.cases(Options(lanes=("views", "s[ip]*")))} == {"views", "sizes", "special"}
    scalars = {c.subject for c in SUITE.cases(Options(lanes=("scalars",)))}
    assert {upstream.family(upstream.op_infos()[subject]) for subject in scalars} == {"binary"}


def test_lanes_are_forward_static_and_of_ops_that_take_any_shape():
    cases = [c for c in SUITE.cases(Options(tier=Tier.NIGHTLY)) if c.lane != "samples"]
    assert {(c.shape_mode, c.direction) for c in cases} == {(ShapeMode.STATIC, Direction.FORWARD)}
    assert all(upstream.family(upstream.op_infos()[c.subject]) for c in cases)
    assert len({c.subject for c in cases}) > 200
    assert {c.dtype for c in cases if c.lane == "special"} == {"float32", "float16", "bfloat16"}
    assert not [c for c in SUITE.cases(Options(lanes=("sizes",), directions=(Direction.BACKWARD,)))]
    dynamic = list(SUITE.cases(Options(lanes=("sizes",), shape_modes=(ShapeMode.DYNAMIC,), subjects=("exp",))))
    assert [str(c.shape_mode) for c in dynamic] == ["dynamic"]


def test_sizes():
    assert {(), (0,), (1,), (63,), (64,), (65,), (1009,), (2, 0, 3)} <= set(shapes("exp", "sizes"))
    assert all(s.args[0].shape == s.args[1].shape for s in samples("add", "sizes"))
    reduced = samples("sum", "sizes")
    assert {s.kwargs.get("dim") for s in reduced} == {None, -1, 0}
    for sample in reduced:
        sample.fn(*sample.args, **sample.kwargs)


def test_views():
    made = [s.args[0] for s in samples("exp", "views")]
    assert any(t.storage_offset() for t in made)
    assert any(0 in t.stride() for t in made)
    assert any(t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last) for t in made)
    assert any(t.stride() == (1, 1) for t in made)
    assert sum(not t.is_contiguous() for t in made) >= 5


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_special_values(dtype):
    (x,) = samples("exp", "special", dtype)[0].args
    limits = torch.finfo(x.dtype)
    assert {limits.max, limits.min, limits.smallest_normal, float("inf"), -float("inf"), 0.0} <= set(x.tolist())
    assert bool(x.isnan().any())
    assert bool(((x == 0) & x.signbit()).any())
    assert bool(((x != 0) & (x.abs() < limits.smallest_normal)).any())
    a, b = samples("add", "special", dtype)[0].args
    assert a.numel() == x.numel() ** 2
    assert bool((a.isnan() & b.isinf()).any())


def test_a_number_stays_on_the_cpu_whichever_operand_it_is():
    made = samples("add", "scalars")
    assert [[t.dim() for t in s.args] for s in made] == [[0, 2], [0, 2], [2, 0], [2, 0]]
    assert [s.on_cpu for s in made] == [(0,), (0,), (1,), (1,)]
    assert [s.args[s.on_cpu[0]].dtype for s in made] == [torch.float32, torch.float64] * 2
    prepared = calls.prepare(made[0].args, {}, direction="fwd", device="meta", on_cpu=made[0].on_cpu)
    assert [t.device.type for t in prepared.args] == ["cpu", "meta"]
    assert {s.args[1].dtype for s in samples("add", "scalars", "int32")} == {torch.int32, torch.int64}


def test_what_pytorch_refuses_beside_another_device_is_no_sample():
    assert not samples("nextafter", "scalars")  # refused whichever operand it is
    assert {s.on_cpu for s in samples("logical_and", "scalars")} == {(1,)}


def test_values_stay_in_the_domain_of_the_op():
    for sample in samples("acosh", "sizes"):
        assert bool((sample.args[0] >= 1).all())


def test_indices_are_places_in_the_whole_lane():
    every, some = samples("amax", "sizes"), [s.index for s in samples("amax", "sizes")]
    assert some == sorted(set(some))
    assert len(every) < max(some) + 1  # the CPU refuses amax of nothing, whose places stay empty
    assert len({s.digest for s in every}) == len(every)


@pytest.mark.parametrize(
    "case", ["op:cat:float32:static:fwd:sizes", "op:exp:int64:static:fwd:special", "op:exp:float32:static:fwd:nope"]
)
def test_a_lane_that_the_op_does_not_have_is_named(case):
    with pytest.raises(ValueError, match="has no lane"):
        next(SUITE.samples(Case.parse(case)[0], Options()))


def test_every_case_of_a_lane_has_samples():
    options = Options(tier=Tier.NIGHTLY, lanes=("special",), dtypes=("float32",))
    without = [str(c) for c in SUITE.cases(options) if next(SUITE.samples(c, options), None) is None]
    assert without == []
    assert module.supports()["exp"].family == "unary"
