"""What the op suite selects, and that its samples are the same wherever and in whatever order they are made."""

import copy
import os
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch

from conformance.cases import Case, Direction, Options, ShapeMode, Tier
from op_coverage import inputs, upstream
from op_coverage import suite as module
from op_coverage.suite import DTYPES, OpSuite

SUITE = OpSuite()
FWD, BWD = Direction.FORWARD, Direction.BACKWARD
STATIC, DYNAMIC = ShapeMode.STATIC, ShapeMode.DYNAMIC


def summary(options: Options) -> Counter:
    return Counter((c.dtype, str(c.shape_mode), str(c.direction)) for c in SUITE.cases(options))


def first(case_id: str, **options):
    case, _ = Case.parse(case_id)
    return next(SUITE.samples(case, Options(**options)))


@pytest.mark.parametrize("tier", Tier)
def test_every_op_has_cases_or_a_reason(tier):
    options = Options(tier=tier)
    with_cases = {c.subject for c in SUITE.cases(options)}
    without = set(upstream.op_infos()) - with_cases
    for subject in without:
        support = module.supports()[subject]
        assert support.unusable or (tier is not Tier.SMOKE and not set(support.forward) & set(DTYPES)), subject
    assert len(without) <= 20


@pytest.mark.parametrize("tier", Tier)
def test_ids_are_unique_stable_and_parse(tier):
    cases = list(SUITE.cases(Options(tier=tier)))
    ids = [str(c) for c in cases]
    assert len(set(ids)) == len(ids)
    assert ids == [str(c) for c in SUITE.cases(Options(tier=tier))]
    assert [Case.parse(i)[0] for i in ids] == cases


def test_smoke_takes_half_where_an_op_does_and_else_its_first_dtype():
    for case in SUITE.cases(Options(tier=Tier.SMOKE)):
        supported = module.supports()[case.subject].forward
        assert case.dtype == next((d for d in DTYPES if d in supported), supported[0])
        assert (case.shape_mode, case.direction) == (STATIC, FWD)


def test_pr_takes_every_supported_pair_in_both_shape_modes_and_float32_backward():
    expected: Counter = Counter()
    for support in module.supports().values():
        if support.unusable:
            continue
        for mode in ("static", "dynamic"):
            for dtype in set(DTYPES) & set(support.forward):
                expected[dtype, mode, "fwd"] += 1
            expected["float32", mode, "bwd"] += "float32" in support.backward and "float32" in support.forward
    assert summary(Options(tier=Tier.PR)) == expected


@pytest.mark.parametrize(
    ("options", "dtypes", "directions"),
    [
        (Options(tier=Tier.SMOKE, dtypes=("float64",)), {"float64"}, {"fwd"}),
        (Options(tier=Tier.SMOKE, directions=(BWD,)), {"float16", "float32", "complex64"}, {"bwd"}),
        (Options(tier=Tier.PR, dtypes=("float16",)), {"float16"}, {"fwd"}),
        (Options(tier=Tier.PR, dtypes=("float16",), directions=(BWD,)), {"float16"}, {"bwd"}),
        (Options(tier=Tier.PR, directions=(BWD,)), {"float32"}, {"bwd"}),
        (Options(tier=Tier.NIGHTLY, dtypes=("float64",)), {"float64"}, {"fwd", "bwd"}),
        (Options(tier=Tier.NIGHTLY, dtypes=("int64",)), {"int64"}, {"fwd"}),
    ],
)
def test_what_is_asked_for_by_name_narrows_or_extends_the_tier(options, dtypes, directions):
    cases = list(SUITE.cases(options))
    assert {c.dtype for c in cases} <= dtypes
    assert {c.dtype for c in cases} & dtypes
    assert {str(c.direction) for c in cases} == directions


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(subjects=("softmax*",)), {"softmax", "softmax.with_dtype"}),
        (Options(subjects=("nope",)), set()),
        (Options(lanes=("views",), subjects=("relu",)), set()),
    ],
)
def test_globs_and_lanes_narrow(options, expected):
    assert {c.subject for c in SUITE.cases(options)} == expected


def test_cases_and_excluded_add_up_to_the_whole_grid():
    options = Options(tier=Tier.PR)
    per_op = len(DTYPES) * 2 + 2  # forward in both modes, and float32 backward in both
    total = len(list(SUITE.cases(options))) + sum(SUITE.excluded(options).values())
    assert total == per_op * len(upstream.op_infos())


def test_an_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="'flaot32' is not a dtype of torch"):
        list(SUITE.cases(Options(dtypes=("flaot32",))))


def test_an_unknown_op_is_named():
    case, _ = Case.parse("op:no_such_op:float32:static:fwd:samples")
    with pytest.raises(ValueError, match="has no op 'no_such_op'"):
        next(SUITE.samples(case, Options()))


def test_listing_cases_costs_less_than_a_second():
    list(SUITE.cases(Options()))
    started = time.process_time()
    list(SUITE.cases(Options(tier=Tier.NIGHTLY)))
    assert time.process_time() - started < 1


def test_an_op_added_upstream_adds_cases(monkeypatch):
    infos = dict(upstream.op_infos())
    added = copy.copy(infos["exp"])
    added.name = "brand_new"
    infos["brand_new"] = added
    monkeypatch.setattr(upstream, "op_infos", lambda: infos)
    module.supports.cache_clear()
    try:
        cases = [c for c in SUITE.cases(Options(tier=Tier.PR)) if c.subject == "brand_new"]
        sample = next(SUITE.samples(cases[0], Options(tier=Tier.PR)))
        assert len(cases) > 10
        assert sample.numerics == "composite"
        assert SUITE.manifest(Options())["unclassified"] == ["brand_new"]
    finally:
        module.supports.cache_clear()


# --- samples ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import warnings; warnings.simplefilter("ignore")
from conformance.cases import Options, Tier
from op_coverage.suite import OpSuite
suite = OpSuite()
options = Options(tier=Tier.NIGHTLY, subjects=tuple({subjects!r}), dtypes=("float32", "int64"), max_samples=4)
cases = list(suite.cases(options))
for case in (reversed(cases) if {backwards} else cases):
    for sample in suite.samples(case, options):
        print(case.sample_id(sample.index), sample.digest)
"""
SUBJECTS = ["add", "index_put", "sort", "nn.functional.dropout", "linalg.svd", "sparse.mm.reduce", "einsum", "where"]


def started(hash_seed: str, backwards: bool) -> subprocess.Popen:
    script = SCRIPT.format(subjects=SUBJECTS, backwards=backwards)
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True)


def test_samples_repeat_between_processes_hash_seeds_and_orders():
    processes = [started("1", False), started("2", True)]
    one, other = (dict(line.split() for line in p.communicate(timeout=300)[0].splitlines()) for p in processes)
    assert len(one) > 100
    assert one == other


def test_the_seed_changes_the_inputs():
    assert (
        first("op:exp:float32:static:fwd:samples").digest != first("op:exp:float32:static:fwd:samples", seed=1).digest
    )


def test_making_samples_leaves_the_generators_alone():
    before = torch.get_rng_state()
    list(SUITE.samples(*[Case.parse("op:add:float32:static:fwd:samples")[0]], Options(tier=Tier.NIGHTLY)))
    assert torch.equal(torch.get_rng_state(), before)


def test_indices_are_opinfos_own_and_in_order():
    case, _ = Case.parse("op:add:float32:static:fwd:samples")
    every = [s.index for s in SUITE.samples(case, Options(tier=Tier.NIGHTLY))]
    assert every == list(range(len(every)))
    (only,) = SUITE.samples(case, Options(tier=Tier.PR))
    assert only.index > 0  # the first ones of add are scalars
    assert max(a.numel() for a in only.args) > 1
    assert [s.index for s in SUITE.samples(case, Options(tier=Tier.NIGHTLY, max_samples=3))] == [0, 1, 2]


def test_dynamic_samples_replay_other_sizes_and_static_ones_do_not():
    assert first("op:matmul:float32:static:fwd:samples").replays == ()
    sample = first("op:nn.functional.linear:float32:dynamic:fwd:samples")
    shapes = [[t.shape for t in args] for args, _ in [(sample.args, None), *sample.replays]]
    assert len(shapes) == 3
    assert len({tuple(map(tuple, s)) for s in shapes}) == 3
    for args, kwargs in sample.replays:
        sample.fn(*args, **kwargs)


def test_most_ops_with_tensor_inputs_have_other_sizes():
    options = Options(
        tier=Tier.PR, dtypes=("float32",), shape_modes=(DYNAMIC,), directions=(FWD,), subjects=("[a-e]*",)
    )
    samples = [next(SUITE.samples(case, options)) for case in SUITE.cases(options)]
    assert sum(len(s.replays) == 2 for s in samples) > 0.9 * len(samples)


def test_backward_samples_say_what_is_differentiable_and_come_detached():
    sample = first("op:nn.functional.linear:float32:static:bwd:samples")
    assert sample.differentiable
    assert not any(a.requires_grad for a in sample.args if isinstance(a, torch.Tensor))
    assert first("op:nn.functional.linear:float32:static:fwd:samples").differentiable is None


def test_gradients_of_factorisations_are_taken_of_what_is_unique():
    sample = first("op:linalg.eigh:float32:static:bwd:samples")
    vectors = sample.fn(*sample.args, **sample.kwargs)[1]
    assert bool((vectors >= 0).all())


@pytest.mark.parametrize("subject", module.ON_CPU)
def test_what_stays_on_the_cpu_is_there_in_the_samples(subject):
    case, _ = Case.parse(f"op:{subject}:float32:static:fwd:samples")
    given = [
        (sample, inputs.tensors(sample.args, sample.kwargs))
        for sample in SUITE.samples(case, Options(tier=Tier.NIGHTLY))
    ]
    assert any(len(tensors) > max(sample.on_cpu) for sample, tensors in given)
    assert all(not t.is_floating_point() for sample, tensors in given for t in tensors[min(sample.on_cpu) :])


def test_tensors_that_share_memory_still_do():
    case, _ = Case.parse("op:as_strided.partial_views:float32:static:fwd:samples")
    sample = next(SUITE.samples(case, Options()))
    assert sample.args[0].untyped_storage().nbytes() > sample.args[0].numel() * 4


def test_the_manifest_names_all_overloads_and_the_core_ones():
    facts = SUITE.manifest(Options())
    everything, core = set(facts["overloads"]["all"]), set(facts["overloads"]["core"])
    assert {"aten::add.Tensor", "aten::relu", "aten::convolution"} <= core < everything
    assert 150 < len(core) < 400
    assert len(everything) > 2500
    assert "aten::add.out" in everything - core
    assert facts["op_infos"] == len(upstream.op_infos())
    assert set(facts["unclassified"]) <= set(upstream.op_infos())


def test_collection_imports_no_torch():
    script = "import sys, op_coverage.test_ops, op_coverage.suite; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
