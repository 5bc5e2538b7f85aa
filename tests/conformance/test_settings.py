"""The command line: every value is checked, and a resumed run stays one run."""

from __future__ import annotations

import argparse
import shlex

import pytest

from conformance import options, settings
from conformance.cases import Case, Direction, Options, ShapeMode, Tier
from conformance.isolation.supervisor import Limits
from conformance.settings import Settings, SettingsError


def parsed(*arguments: str) -> dict:
    parser = argparse.ArgumentParser()
    options.register(parser.add_argument, (), (), paths_only=False)
    return settings.given(parser.parse_args(arguments))


def made(*arguments: str, base: Settings | None = None) -> Settings:
    return settings.settings_from(parsed(*arguments), base)


def test_nothing_given():
    assert parsed() == {}
    assert made() == Settings()


EVERYTHING = """--backend x.py:B --backend-import m --backend-options a=1 --backend-options b=text --device cuda:1
--tier nightly --op add* --op mul,sub --dtype float16,int64 --dtype bool --shape-mode dynamic
--direction bwd --lane samples --seed 7 --max-samples 3 --sample-timeout 1.5 --memory-limit 1G --expectations e.toml"""


def test_everything_given():
    found = made(*shlex.split(EVERYTHING))
    assert found == Settings(
        backend="x.py:B",
        backend_import=("m",),
        backend_options={"a": 1, "b": "text"},
        device="cuda:1",
        options=Options(
            tier=Tier.NIGHTLY,
            dtypes=("float16", "int64", "bool"),
            subjects=("add*", "mul", "sub"),
            shape_modes=(ShapeMode.DYNAMIC,),
            directions=(Direction.BACKWARD,),
            lanes=("samples",),
            seed=7,
            max_samples=3,
        ),
        limits=Limits(seconds=1.5, memory=1 << 30),
        expectations="e.toml",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tier", "all"], "--tier: 'all' is unknown; one of smoke, pr, nightly"),
        (["--dtype", "flota16"], "--dtype: 'flota16' is unknown; did you mean 'float16'?"),
        (["--dtype", "float16,half"], "--dtype: 'half' is unknown"),
        (["--shape-mode", "both"], "--shape-mode: 'both' is unknown; one of static, dynamic"),
        (["--direction", "back"], "--direction: 'back' is unknown"),
        (["--seed", "x"], "--seed: 'x' is not a number from 0 on"),
        (["--seed", "-1"], "--seed: '-1' is not a number from 0 on"),
        (["--max-samples", "0"], "--max-samples: '0' is not a number from 1 on"),
        (["--sample-timeout", "0"], "--sample-timeout: '0' is not a number of seconds above 0"),
        (["--sample-timeout", "nan"], "--sample-timeout: 'nan' is not a number of seconds above 0"),
        (["--sample-timeout", "inf"], "--sample-timeout: 'inf' is not a number of seconds above 0"),
        (["--memory-limit", "much"], "--memory-limit: 'much' is not a size; one looks like 2G"),
        (["--backend-options", "x"], "--backend-options: 'x' is neither KEY=VALUE nor a JSON object"),
        (["--backend-options", '{"x": }'], "is not JSON"),
    ],
)
def test_a_mistake_names_the_option_and_what_would_be_right(arguments, words):
    with pytest.raises(SettingsError) as raised:
        parsed(*arguments)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (['{"a": [1], "b": null}'], {"a": [1], "b": None}),
        (["a=true", "b=0.5", "c=x=y", "d="], {"a": True, "b": 0.5, "c": "x=y", "d": ""}),
        (['{"a": 1}', "a=2"], {"a": 2}),
    ],
)
def test_backend_options(texts, found):
    assert settings.parse_backend_options(texts) == found


def test_a_resumed_run_keeps_its_settings():
    base = made("--backend", "eager", "--tier", "pr", "--op", "add", "--seed", "3")
    assert made(base=base) == base
    assert made("--backend", "eager", "--op", "add", base=base) == base
    assert made("--sample-timeout", "9", base=base).limits.seconds == 9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tier", "smoke"], "--tier: the run to resume was made with pr, not smoke; leave it out"),
        (["--op", "mul"], "--op: the run to resume was made with add, not mul"),
        (["--dtype", "bool"], "--dtype: the run to resume was made with no restriction, not bool"),
        (["--backend", "spyre"], "--backend: the run to resume was made with eager, not spyre"),
        (["--device", "cpu"], "--device: the run to resume was made with none, not cpu"),
    ],
)
def test_a_resumed_run_is_not_changed(arguments, words):
    base = made("--backend", "eager", "--tier", "pr", "--op", "add")
    with pytest.raises(SettingsError) as raised:
        made(*arguments, base=base)
    assert words in str(raised.value)


def test_flags_that_are_taken_are_left_alone():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed")
    options.register(parser.add_argument, {"--seed"}, {"seed", "conformance_device"}, paths_only=False)
    found = parser.parse_args(["--seed", "theirs", "--conformance-seed", "3"])
    assert settings.given(found) == {"seed": 3}
    assert not hasattr(found, "conformance_device")


def test_paths_come_first():
    parser = argparse.ArgumentParser()
    options.register(parser.add_argument, (), (), paths_only=True)
    flags = set(parser._option_string_actions)
    assert {"--run-dir", "--resume", "--expectations"} <= flags
    assert "--backend" not in flags


def test_each_restriction_can_be_asked_for_alone():
    restricted = made("--op", "add*", "--dtype", "bool", "--lane", "samples", "--tier", "pr").options
    found = [(flag, value) for flag, value, _ in settings.restrictions(restricted)]
    assert found == [("--op", "add*"), ("--dtype", "bool"), ("--lane", "samples")]
    _, _, alone = next(iter(settings.restrictions(restricted)))
    assert alone == Options(tier=Tier.PR, subjects=("add*",))


@pytest.mark.parametrize(
    ("flag", "value", "selected"),
    [
        ("--op", "add*", True),
        ("--op", "add", False),
        ("--dtype", "bool", True),
        ("--dtype", "int64", False),
        ("--shape-mode", ShapeMode.STATIC, True),
        ("--direction", Direction.BACKWARD, False),
        ("--lane", "samples", True),
    ],
)
def test_what_a_restriction_selects(flag, value, selected):
    case = Case("op", "addmm", "bool", ShapeMode.STATIC, Direction.FORWARD)
    assert settings.selected_by(flag, value)(case) is selected


def test_a_failure_can_be_reproduced_with_the_same_backend_and_seed():
    found = made("--backend", "compile:tvm", "--backend-import", "tvm.x", "--backend-options", "a=[1]", "--seed", "3")
    assert (
        settings.repro_flags(found) == "--backend compile:tvm --backend-import tvm.x --backend-options 'a=[1]' --seed 3"
    )


def test_traced_calls_are_those_of_a_file_or_of_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.parquet").touch()
    assert made("--traced", "t.parquet").options.traced == str(tmp_path / "t.parquet")
    found = made("--traced", "20260101")
    assert found.options.traced == "20260101"
    assert "--traced 20260101" in settings.repro_flags(found)
    assert [alone.traced for _, _, alone in settings.restrictions(made("--traced", "x", "--op", "y").options)] == ["x"]


def test_files_of_models_travel_as_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "a,b.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    found = made("--models", "a,b.toml", "--dtype", "int64")
    assert found.options.models == (str(tmp_path / "a,b.toml"),)
    assert f"--models {tmp_path}/a,b.toml" in settings.repro_flags(found)
    assert made(base=found).options.models == found.options.models
    assert [alone.models for _, _, alone in settings.restrictions(found.options)] == [found.options.models]
    with pytest.raises(SettingsError, match=r"--models: there is no file none\.toml"):
        parsed("--models", "none.toml")


def test_suites_look_at_the_files_that_are_theirs(monkeypatch):
    class Suite:
        def check(self, options):
            raise ValueError(f"{options.models[0]}:1: wrong")

    monkeypatch.setattr("conformance.suites.names", lambda: ["other", "looking"])
    monkeypatch.setattr("conformance.suites.find", lambda name: Suite() if name == "looking" else object())
    given = Options(models=("m.toml",))
    settings.check_files(given, ["other", "path/to/file.py:Suite"])
    with pytest.raises(SettingsError, match=r"m\.toml:1: wrong"):
        settings.check_files(given)
