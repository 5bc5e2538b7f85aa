"""What the model sweeps select, and which samples they make."""

from __future__ import annotations

import importlib
import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch

from conformance.cases import Case, Direction, NotBuildable, Options, ShapeMode, Tier
from models import samples, sources
from models.decoding import DecodeSuite
from models.subjects import Subject
from models.suite import VARIANTS, ModelSuite
from models.zoo import architectures


def named(tier=Tier.NIGHTLY, suite=ModelSuite, **selection):
    return [str(case) for case in suite().cases(Options(tier=tier, **selection))]


def test_each_tier_has_all_of_the_smaller_ones():
    smoke, pr, nightly = (set(named(tier)) for tier in Tier)
    assert smoke < pr < nightly
    assert len({case.split(":")[1] for case in smoke}) == len(sources.tiers()["smoke"])


def test_nightly_has_every_architecture_static_and_dynamic():
    by_mode = Counter()
    for case in ModelSuite().cases(Options(tier=Tier.NIGHTLY)):
        if "/" not in case.subject and case.lane == "samples" and case.direction is Direction.FORWARD:
            by_mode[case.shape_mode, case.subject.rpartition(".")[0]] += 1
    for mode in (ShapeMode.STATIC, ShapeMode.DYNAMIC):
        assert {kind for m, kind in by_mode if m is mode} == set(architectures.architectures())


def test_what_tiers_name_exists():
    known = architectures.architectures()
    tiers = sources.tiers()
    for name in [
        *tiers["smoke"],
        *tiers["pr"].values(),
        *tiers["more"]["pr"],
        *itertools.chain(*tiers["decode"].values()),
    ]:
        if "/" in name:
            assert name in {each.name for each in sources.source(sources.prefix_of(name)).listed(Options())}
            continue
        model_type, _, task = name.rpartition(".")
        assert task in known[model_type].tasks, name


def test_what_is_left_out_is_counted_with_a_reason():
    options = Options(tier=Tier.SMOKE)
    every = len(sources.selected(options)) * len(VARIANTS)
    suite = ModelSuite()
    assert len(list(suite.cases(options))) + sum(suite.excluded(options).values()) == every


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (
            {"subjects": ("llama.causal-lm",), "lanes": ("fullgraph",)},
            ["model:llama.causal-lm:float32:static:fwd:fullgraph"],
        ),
        (
            {"subjects": ("afmoe.causal-lm",), "directions": (Direction.BACKWARD,)},
            ["model:afmoe.causal-lm:float32:static:bwd:samples"],
        ),
        (
            {"subjects": ("bert.*classification",), "shape_modes": (ShapeMode.STATIC,), "dtypes": ("float16",)},
            [
                f"model:bert.{task}-classification:float16:static:fwd:samples"
                for task in ("sequence", "token")
            ],
        ),
    ],
)  # fmt: skip
def test_what_is_asked_for_by_name(selection, expected):
    found = named(**selection)
    assert set(expected) <= set(found)
    if "lanes" in selection or "directions" in selection:
        assert found == expected


@pytest.mark.parametrize(
    ("subject", "least"),
    [
        ("llama.causal-lm", Tier.PR),
        ("qwen3.causal-lm", Tier.NIGHTLY),
        ("gpt2.causal-lm", Tier.NIGHTLY),
        ("afmoe.causal-lm", None),
    ],
)
def test_what_costs_another_compilation_is_run_in_larger_tiers(subject, least):
    for tier in Tier:
        lanes = {case.lane for case in ModelSuite().cases(Options(tier=tier)) if case.subject == subject}
        assert ("fullgraph" in lanes) == (least is not None and sources.at_most(least, tier))


@pytest.mark.parametrize(
    ("subject", "least"),
    [("llama.causal-lm", Tier.SMOKE), ("gpt2.causal-lm", Tier.NIGHTLY), ("priority/qwen3-0.6b", Tier.PR)],
)
def test_families_have_symbolic_sizes_in_nightly_or_where_asked_for(subject, least):
    dynamic = {"subjects": (subject,)}
    for tier in Tier:
        modes = {case.shape_mode for case in ModelSuite().cases(Options(tier=tier)) if case.subject == subject}
        assert (ShapeMode.DYNAMIC in modes) == sources.at_most(least, tier)
        assert any(":dynamic:" in case for case in named(tier, **dynamic))


@pytest.mark.parametrize(
    ("name", "tier", "most"),
    [("llama", Tier.SMOKE, 1), ("llama", Tier.PR, 1), ("llama", Tier.NIGHTLY, 2), ("afmoe", Tier.NIGHTLY, 1)],
)
def test_a_batch_of_one_among_symbolic_sizes_is_compiled_in_nightly_of_what_smaller_tiers_have(name, tier, most):
    case = Case.parse(f"model:{name}.causal-lm:float32:dynamic:fwd:samples")[0]
    assert [sample.index for sample in ModelSuite().samples(case, Options(tier=tier))] == list(range(most))


def test_a_sample_that_only_a_named_model_has_is_found_again():
    from conformance import rerun

    case = Case.parse("model:afmoe.causal-lm:float32:dynamic:fwd:samples")[0]
    assert rerun.sample_of(ModelSuite(), case, 1, Options()).index == 1


def test_what_writes_decodes_with_both_caches():
    assert named(Tier.PR, DecodeSuite, subjects=("llama.causal-lm",)) == [
        "decode:llama.causal-lm:float32:automatic:fwd:dynamic-cache",
        "decode:llama.causal-lm:float32:automatic:fwd:static-cache",
    ]
    for name in ("t5.seq2seq-lm", "whisper.speech-seq2seq", "llava.image-text-to-text", "priority/bart-base"):
        assert len(named(Tier.PR, DecodeSuite, subjects=(name,))) == 2
        assert f"decode:{name}:float32:automatic:fwd:dynamic-cache" in named(suite=DecodeSuite)
    assert named(suite=DecodeSuite, subjects=("vit.*",)) == []
    assert {case.split(":")[1] for case in named(Tier.SMOKE, DecodeSuite)} == set(sources.tiers()["decode"]["smoke"])
    pr = {case.split(":")[1] for case in named(Tier.PR, DecodeSuite)}
    assert pr == {*sources.tiers()["decode"]["smoke"], *sources.tiers()["decode"]["pr"]}
    assert named(suite=DecodeSuite, shape_modes=(ShapeMode.STATIC,)) == []
    assert len(named(suite=DecodeSuite)) > 2 * 280


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("model:llama.causal-lm:float32:dynamic:fwd:fullgraph", "models have"),
        ("model:nonsense.causal-lm:float32:static:fwd:samples", "has no 'nonsense.causal-lm'"),
        ("model:llama.causal-lm:int64:static:fwd:samples", "floating-point dtypes"),
        ("model:nobody/x:float32:static:fwd:samples", "names begin with"),
    ],
)
def test_what_there_is_not_is_an_error_that_says_what_there_is(text, error):
    with pytest.raises(ValueError, match=error):
        next(iter(ModelSuite().samples(Case.parse(text)[0], Options(tier=Tier.NIGHTLY))))


# --- samples ----------------------------------------------------------------------------------------------------------


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 4)

    def forward(self, input_ids):
        return {"logits": self.embed(input_ids)}


def subject(**fields):
    def inputs(dtype, seed, batch, length):
        return {"input_ids": torch.arange(batch * length).reshape(batch, length) % 7}

    return Subject("tiny", lambda dtype, seed, training: Tiny().to(dtype), inputs, **fields)


def case(mode=ShapeMode.STATIC, direction=Direction.FORWARD, lane="samples"):
    return Case("model", "tiny", "float32", mode, direction, lane)


def shapes(sample):
    return [tuple(kwargs["input_ids"].shape) for kwargs in (sample.kwargs, *(k for _, k in sample.replays))]


LENGTHS = [(2, 16), (2, 8), (2, 24), (2, 33), (2, 7), (2, 65)]
MANY = [(5, 16), *LENGTHS[1:], (3, 16)]


@pytest.mark.parametrize(
    ("case", "fields", "expected"),
    [
        (case(), {"lengths": True}, [[(2, 16)]]),
        (case(ShapeMode.DYNAMIC), {"lengths": True}, [MANY, [(5, 16), (1, 16)]]),
        (case(ShapeMode.DYNAMIC), {"lengths": True, "batched": False}, [LENGTHS]),
        (case(ShapeMode.DYNAMIC), {}, [[(5, 16), (3, 16), (2, 16)], [(5, 16), (1, 16)]]),
        (case(ShapeMode.DYNAMIC), {"batched": False}, []),
        (case(ShapeMode.AUTOMATIC, lane="marked"), {"lengths": True}, [MANY]),
        (
            case(ShapeMode.DYNAMIC),
            {"lengths": True, "batched": False, "length_multiple": 8},
            [[(2, 16), (2, 8), (2, 24), (2, 40), (2, 8), (2, 72)]],
        ),
        (case(direction=Direction.BACKWARD), {}, [[(2, 16)]]),
    ],
)
def test_sizes_of_the_calls(case, fields, expected):
    made = list(samples.of_forward(case, subject(**fields), 0))
    assert [shapes(sample) for sample in made] == expected


def test_budgets_allow_what_sizes_demand():
    made = list(samples.of_forward(case(ShapeMode.DYNAMIC), subject(lengths=True), 0))
    assert [(s.budgets.graph_breaks, s.budgets.recompiles) for s in made] == [(0, 0), (0, 1)]
    (whole,) = samples.of_forward(case(lane="fullgraph"), subject(), 0)
    assert whole.fullgraph


def test_a_model_without_a_cache_does_not_decode():
    decode = Case("decode", "tiny", "float32", ShapeMode.AUTOMATIC, Direction.FORWARD, "dynamic-cache")
    with pytest.raises(NotBuildable, match="takes no cache"):
        next(samples.of_decoding(decode, subject(), 0))


def test_digests_tell_weights_and_inputs_apart_and_not_code(tmp_path, monkeypatch):
    class Other(Tiny):
        def __init__(self):
            super().__init__()
            torch.nn.init.ones_(self.embed.weight)

    from dataclasses import replace

    torch.manual_seed(0)
    (one,) = samples.of_forward(case(), subject(), 0)
    torch.manual_seed(0)
    (again,) = samples.of_forward(case(), subject(), 0)
    (other,) = samples.of_forward(case(), replace(subject(), build=lambda *_: Other()), 0)
    assert one.digest == again.digest
    assert one.digest != other.digest
    # What an upgrade of transformers changes in the file of a model is what is tested, and no other test.
    anew = "from tests.models.test_suite import Tiny\n\n\nclass Rewritten(Tiny):\n    pass\n"
    (tmp_path / "rewritten.py").write_text(anew)
    monkeypatch.syspath_prepend(tmp_path)
    rewritten = importlib.import_module("rewritten").Rewritten
    torch.manual_seed(0)
    (new,) = samples.of_forward(case(), replace(subject(), build=lambda *_: rewritten()), 0)
    assert new.digest == one.digest


def test_expectations_lie_beside_the_suites():
    assert ModelSuite.expectations_dir == DecodeSuite.expectations_dir
    assert ModelSuite.expectations_dir.parent == Path(sources.__file__).parent
