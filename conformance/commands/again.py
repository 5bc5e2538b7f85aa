"""`conformance repro` and `conformance explain`: run one sample again, in a child that it may kill."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from conformance import repro as scripts
from conformance import rerun, settings
from conformance.cases import Options
from conformance.commands import backends, mistakes, runs
from conformance.commands.mistakes import Mistake
from conformance.isolation import child, forked, process
from conformance.outcomes import Outcome
from conformance.report.table import Format

if TYPE_CHECKING:
    from conformance.backends.protocol import Backend
    from conformance.cases import Case, Sample

SECONDS = 180.0  # for a diagnosis: it compiles twice
REFUSED = b"!"  # what the child says before the mistake that it has found
ENDS = {forked.End.CRASH: Outcome.CRASH, forked.End.TIMEOUT: Outcome.TIMEOUT}

Work = Callable[["Backend", Any, "Case", "Sample"], Iterable[bytes]]


def options(seed: int, models: Sequence[str] | None, traced: str | None = None) -> Options:
    """How samples are made: seed, files of `--models`, run or file of `--traced`.

    Raises `SettingsError` for a file that cannot be used."""
    try:
        calls = settings.file_or_run(traced) if traced is not None else None
        given = Options(seed=seed, models=tuple(map(settings.file, models or ())), traced=calls)
    except ValueError as error:
        raise settings.SettingsError(f"--models: {error}") from None
    if given.models:
        settings.check_files(given)
    return given


def in_child(
    text: str, chosen: backends.Chosen, wanted: Options, seconds: float, prepare: Callable[[], None], work: Work
) -> forked.Report:
    """What `work` says of a sample on a backend that has been set up, in a forked child.

    Raises `Mistake` for a sample or backend that is not there.
    """
    case, index = rerun.parse(text)

    def produce() -> Iterator[bytes]:
        os.environ.update(child.environment(os.environ))  # as in a sweep, which this is to repeat
        prepare()
        try:
            backend = backends.find(chosen)
            os.environ.update(getattr(backend, "environment", dict)())
            available, why = backend.availability()
            mistakes.needs(available, f"backend {backend.name!r} is not available: {why}")
            suite = rerun.suite_of(case)
            sample = rerun.sample_of(suite, case, index, wanted)
            set_up(backend)
            yield from work(backend, suite, case, sample)
        except mistakes.kinds() as error:
            yield REFUSED + str(error).encode().replace(b"\n", b" ")

    report = forked.run(produce, seconds)
    if report.lines and report.lines[-1].startswith(REFUSED):
        raise Mistake(report.lines[-1].removeprefix(REFUSED).decode())
    if report.end is forked.End.FAULT:
        raise Mistake(f"{text}: this suite itself failed while it ran the sample; the traceback is above")
    return report


def set_up(backend: Backend) -> None:
    """Raises `Mistake`, in one line: what a backend needs and does not find (a compiler, a driver) is for the user."""
    try:
        backend.setup()
    except Exception as error:
        raise Mistake(f"backend {backend.name!r} cannot be set up: {process.one_line(error)}") from error


# --- repro -----------------------------------------------------------------------------------------------------------


def repro(text: str, chosen: backends.Chosen, wanted: Options, output: Path | None) -> int:
    """Write the script; 0 when it has been seen to show the failure, else 1."""
    setting, failure = diagnosed(text, chosen, wanted)
    variants = [scripts.compose(setting, failure)]
    if failure.check is not None and len(setting.calls) > 1:
        variants.append(scripts.compose(setting, failure, all_calls=True))
    for script in variants:
        status, said = tried(script)
        if status == 1:
            break
    if output is None:
        sys.stdout.write(script)
    else:
        output.write_text(script, encoding="utf-8")
        print(f"{output}: shows `{failure.outcome}` of {setting.sample} on {setting.backend}", file=sys.stderr)
    if status != 1:
        tail = f"\n{said.rstrip()}" if said.strip() else ""
        print(f"conformance: the script exits with {status} here, not with 1 as it should{tail}", file=sys.stderr)
    return 0 if status == 1 else 1


def diagnosed(text: str, chosen: backends.Chosen, wanted: Options) -> tuple[scripts.Setting, scripts.Failure]:
    """The call as source, and what goes wrong with it."""

    def work(backend: Backend, suite: Any, case: Case, sample: Sample) -> Iterable[bytes]:
        from conformance.diagnosis import diagnose

        return diagnose(backend, case, sample)

    report = in_child(text, chosen, wanted, SECONDS, lambda: None, work)
    if not report.lines:
        raise Mistake(f"{text}: the process ended ({report.detail}) before the sample was made")
    setting = msgspec.json.decode(report.lines[0], type=scripts.Setting)
    if len(report.lines) > 1:
        return setting, msgspec.json.decode(report.lines[1], type=scripts.Failure)
    outcome = ENDS.get(report.end, Outcome.CRASH)
    return setting, scripts.Failure(outcome=outcome, message=f"the process ended: {report.detail}")


def tried(script: str) -> tuple[int | str, str]:
    """(exit status or why there is none, standard error) of a script, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="repro-") as scratch:
        path = Path(scratch) / "repro.py"
        path.write_text(script, encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, str(path)],
                cwd=scratch,
                capture_output=True,
                text=True,
                timeout=2 * SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"no end in {2 * SECONDS:g} s", ""
    return done.returncode, done.stderr


# --- explain ---------------------------------------------------------------------------------------------------------


def explain(text: str, chosen: backends.Chosen, wanted: Options, seconds: float, as_format: str) -> int:
    """Print the sections as far as they came; 1 when the sample killed the process."""
    from conformance import explanation

    to = runs.format_of(as_format)

    def work(backend: Backend, suite: Any, case: Case, sample: Sample) -> Iterable[bytes]:
        return explanation.explain(backend, suite.name, case, sample, wanted.seed)

    report = in_child(text, chosen, wanted, seconds, explanation.prepare, work)
    for line in report.lines:
        print(shown(msgspec.json.decode(line, type=explanation.Section), to) + "\n")
    if report.end is not forked.End.DONE:
        print(f"the process ended: {report.end} ({report.detail})")
        return 1
    return 0


def shown(section: Any, to: Format) -> str:
    """One section as text."""
    if to is Format.GITHUB:
        return f"### {section.title}\n\n```\n{section.text}\n```"
    return f"{section.title}\n{'=' * len(section.title)}\n{section.text}"
