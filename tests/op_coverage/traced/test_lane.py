"""The lane `traced`: real captures become cases and samples whose ids stay and which know their models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance import observe, signatures, traced
from conformance.cases import Case, Direction, NotBuildable, Options, ShapeMode, Tier
from conformance.outcomes import Outcome
from conformance.records import Record
from conformance.signatures import Signature
from conformance.tracing import Trace
from op_coverage.suite import OpSuite

SUITE = OpSuite()


class Block(torch.nn.Module):
    """Attention with a gathered mask, a norm, an embedding, a sort: what models are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.out = torch.nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embed(ids))
        x = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        order = self.out(x).sum(-1).argsort(-1)
        return torch.gather(x, 1, order[..., None].expand(x.shape)).sigmoid().sqrt()


@pytest.fixture(scope="module")
def calls() -> dict[str, list[str]]:
    """Texts by shape mode."""
    found = {}
    for mode in ("static", "dynamic"):
        torch.compiler.reset()
        trace = Trace()
        compiled = torch.compile(Block(), backend=observe.capturing(trace.add), dynamic=mode == "dynamic")
        with torch.no_grad():
            compiled(torch.arange(10).reshape(2, 5))
        found[mode] = list(trace.texts)
    torch.compiler.reset()
    return found


def records(**texts: list[str]) -> list[Record]:
    return [
        Record.of(
            Case("model", model, "float32", ShapeMode.STATIC, Direction.FORWARD),
            0,
            suite="models",
            backend="trace",
            outcome=Outcome.PASS,
            traced=signatures.pack(packed),
        )
        for model, packed in texts.items()
    ]


@pytest.fixture
def file(tmp_path: Path, calls: dict[str, list[str]]) -> str:
    path = tmp_path / "traced.parquet"
    traced.write(path, traced.collect(records(a=calls["static"] + calls["dynamic"], b=calls["static"][:3])))
    return str(path)


def options(file: str | None, **fields) -> Options:
    return Options(lanes=("traced",), traced=file, **fields)


def every_sample(opts: Options):
    return [(case, sample) for case in SUITE.cases(opts) for sample in SUITE.samples(case, opts)]


def test_every_call_is_a_sample_that_eager_accepts(file, calls):
    opts = options(file, tier=Tier.NIGHTLY)
    found = every_sample(opts)
    assert len(found) == len(set(calls["static"]) | set(calls["dynamic"]))
    for _, sample in found:
        sample.fn(*sample.args, **sample.kwargs)


def test_calls_with_symbols_are_dynamic_and_replayed_at_other_sizes(file):
    for case, sample in every_sample(options(file, tier=Tier.NIGHTLY)):
        assert len(sample.replays) == (2 if case.shape_mode is ShapeMode.DYNAMIC else 0), sample.notes["signature"]
        for args, kwargs in sample.replays:
            sample.fn(*args, **kwargs)


def test_samples_know_their_models(file, calls):
    found = {sample.index: sample.notes["models"] for _, sample in every_sample(options(file, tier=Tier.NIGHTLY))}
    assert found[signatures.number(calls["static"][0])] == ("a", "b")
    assert found[signatures.number(calls["static"][-1])] == ("a",)


def test_samples_are_the_same_each_time_and_with_other_models(file, tmp_path, calls):
    once = {(c, s.index): s.digest for c, s in every_sample(options(file, tier=Tier.NIGHTLY))}
    other = tmp_path / "other.parquet"
    traced.write(other, traced.collect(records(z=calls["dynamic"], a=calls["static"])))
    assert {(c, s.index): s.digest for c, s in every_sample(options(str(other), tier=Tier.NIGHTLY))} == once


def test_smaller_tiers_run_what_most_models_call(file):
    smoke = every_sample(options(file))
    assert len(smoke) == len(SUITE.cases(options(file)))
    assert every_sample(options(file, max_samples=2, subjects=("aten.view*",)))


def test_selections_narrow(file):
    cases = SUITE.cases(options(file, subjects=("aten.addmm*",), shape_modes=(ShapeMode.STATIC,)))
    assert [str(case) for case in cases] == ["op:aten.addmm.default:float32:static:fwd:traced"]
    assert SUITE.cases(options(file, dtypes=("float16",))) == []
    assert SUITE.cases(options(file, directions=(Direction.BACKWARD,))) == []


def test_the_manifest_says_where_they_come_from(file):
    facts = SUITE.manifest(options(file))["traced"]
    assert (facts["file"], facts["models"], facts["unclassified"]) == (file, 2, [])
    assert "traced" not in SUITE.manifest(Options())


def test_without_a_file_the_command_that_makes_one_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_RUNS", str(tmp_path))
    monkeypatch.delenv(traced.VARIABLE, raising=False)
    with pytest.raises(ValueError, match="conformance sweep models --backend trace"):
        SUITE.check(options(None))
    SUITE.check(Options(lanes=("*",), subjects=("relu",)))
    assert {case.lane for case in SUITE.cases(Options(lanes=("*",), subjects=("exp",)))} == {
        "samples",
        "sizes",
        "views",
        "special",
    }


def test_an_op_that_is_not_there_is_not_buildable(tmp_path):
    text = signatures.encode(Signature("elsewhere.op.default", "float32", [{"tensor": ["float32", [2]]}], {}, {}))
    traced.write(tmp_path / "x.parquet", traced.collect(records(a=[text])))
    opts = options(str(tmp_path / "x.parquet"))
    (case,) = SUITE.cases(opts)
    with pytest.raises(NotBuildable, match=r"has no elsewhere\.op\.default"):
        list(SUITE.samples(case, opts))


def test_a_case_that_was_not_traced_is_named(file):
    case, _ = Case.parse("op:aten.tan.default:float32:static:fwd:traced")
    with pytest.raises(ValueError, match=r"has no call of 'aten\.tan\.default'"):
        list(SUITE.samples(case, options(file)))
