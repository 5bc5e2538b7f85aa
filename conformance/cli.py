"""The command line. Declares the commands and imports what they do when one is called, so that `--help` is quick.

A user's mistake is one line on standard error and exit status 2, never a traceback. Further commands come from the
entry-point group `conformance.commands`: NAME = "module:FUNCTION", called with the remaining arguments (a list of str)
and returning an exit status or None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

GROUP = "conformance.commands"

app = typer.Typer(
    name="conformance",
    help="Conformance of PyTorch accelerators behind torch.compile: run, report, explain.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)
backends_app = typer.Typer(help="List the backends, or check one.", invoke_without_command=True, rich_markup_mode=None)
app.add_typer(backends_app, name="backends")

Run = Annotated[str, typer.Argument(help="Directory of a run, its id, a unique prefix of it, or `latest`.")]
AsFormat = Annotated[str, typer.Option("--format", help="plain or github (Markdown to paste into an issue).")]
Everything = Annotated[bool, typer.Option("--all", help="Long tables in full.")]
Backend = Annotated[
    str, typer.Option("--backend", help="Installed backend, file.py:NAME, compile:NAME or device:MODULE.")
]
BackendImport = Annotated[
    list[str] | None, typer.Option("--backend-import", help="Module that registers what compile:/device: names.")
]
BackendOptions = Annotated[
    list[str] | None, typer.Option("--backend-options", help="KEY=VALUE, or a JSON object with all options.")
]
Device = Annotated[str | None, typer.Option("--device", help="Device of the backend, where it has a choice.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the inputs.")]
Models = Annotated[list[str] | None, typer.Option("--models", help="TOML file of your own models.", metavar="FILE")]
Traced = Annotated[
    str | None, typer.Option("--traced", help="Run or file with traced calls; the newest run with some if absent.")
]
SampleId = Annotated[str, typer.Argument(help="Id of a sample, or of a case for its first one.", metavar="SAMPLE")]


@backends_app.callback()
def backends(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """All installed backends: whether each can run here, and why not."""
    if context.invoked_subcommand is None:
        from conformance.commands import backends

        backends.show(as_json)


@backends_app.command("check")
def backends_check(
    name: Annotated[str, typer.Argument(help="Installed backend, file.py:NAME, compile:NAME or device:MODULE.")],
    backend_import: BackendImport = None,
    backend_options: BackendOptions = None,
    device: Device = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time limit of all checks.")] = 300.0,
) -> None:
    """Prove that a backend fulfils the protocol, or say what is missing."""
    from conformance.commands import backends

    raise typer.Exit(backends.check(name, backend_import, backend_options, device, seconds))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def sweep(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help="Suite by the name of its entry point.")] = "ops",
    backend: Backend = "spyre",
    tier: Annotated[str, typer.Option(help="smoke, pr or nightly.")] = "smoke",
    workers: Annotated[str, typer.Option("-n", "--numprocesses", help="Processes, as for pytest-xdist.")] = "auto",
    as_format: AsFormat = "plain",
) -> None:
    """Run a suite on a backend and show the summary.

    Further options go to pytest: -k, --dtype, --op, --resume, ... The exit status is that of pytest.
    """
    from conformance.commands import sweep

    raise typer.Exit(sweep.run(suite, backend, tier, workers, context.args, as_format))


@app.command()
def summary(
    run: Run = "latest",
    as_format: AsFormat = "plain",
    by: Annotated[list[str] | None, typer.Option("--by", help="Outcomes by a further axis, e.g. lane.")] = None,
    everything: Everything = False,
) -> None:
    """What a run came to, as tables.

    Outcomes, support, coverage by overload, causes of failures, tolerances and cost.
    """
    from conformance.commands import runs

    runs.summary(run, as_format, by or [], everything)


@app.command()
def findings(
    run: Run = "latest",
    as_format: AsFormat = "plain",
    causes: Annotated[bool, typer.Option("--causes", help="Join fingerprints that differ in the op alone.")] = False,
) -> None:
    """All failures of a run by fingerprint."""
    from conformance.commands import runs

    runs.findings(run, as_format, causes)


@app.command()
def compare(left: Run, right: Run, as_format: AsFormat = "plain", everything: Everything = False) -> None:
    """Two runs side by side: two backends, or one before and after."""
    from conformance.commands import runs

    runs.compare(left, right, as_format, everything)


@app.command()
def models(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Runs, of one backend or several; the newest if none.")
    ] = None,
    subjects: Annotated[
        list[str] | None, typer.Option("--op", help="Only these models (globs).", metavar="GLOB")
    ] = None,
    as_format: AsFormat = "plain",
) -> None:
    """Each model of one run or several side by side: right or not, graph breaks, recompiles, compile time."""
    from conformance.commands import runs as of_runs

    of_runs.models(runs or ["latest"], as_format, subjects or [])


@app.command()
def show(
    run: Run,
    case: Annotated[str, typer.Argument(help="Id of a case or sample, or a glob over them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Whole records as JSON lines.")] = False,
) -> None:
    """What a run has recorded about a case or sample."""
    from conformance.commands import runs

    runs.show(run, case, as_json)


@app.command()
def traced(
    places: Annotated[
        list[str] | None, typer.Argument(help="Runs or files with traced calls; the newest run with some if absent.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write all of them to.")] = None,
    as_format: AsFormat = "plain",
    everything: Everything = False,
) -> None:
    """Which ops models call, from runs of the backend trace; merges several into one file."""
    from conformance.commands import traced

    traced.show(places or [], output, as_format, everything)


@app.command()
def unlock(
    runs: Annotated[list[str], typer.Argument(help="Runs of one backend: of models, and of the op sweep.")],
    traced: Traced = None,
    goal: Annotated[str, typer.Option(help="on-device (nothing left to the host) or runs.")] = "on-device",
    weights: Annotated[Path | None, typer.Option("--weights", help="TOML file: what models count.")] = None,
    shape_mode: Annotated[list[str] | None, typer.Option("--shape-mode", help="Of models: only this.")] = None,
    direction: Annotated[list[str] | None, typer.Option("--direction", help="Of models: only fwd or bwd.")] = None,
    as_format: Annotated[str, typer.Option("--format", help="plain, github or json.")] = "plain",
    everything: Everything = False,
) -> None:
    """Which ops to fix first: how many models each alone, and the smallest sets together, would unlock."""
    from conformance.commands import unlock

    unlock.unlock(runs, traced, goal, weights, shape_mode or (), direction or (), as_format, everything)


@app.command()
def query(
    run: Run,
    sql: Annotated[str, typer.Argument(help="SQL over the view `records`, e.g. 'select outcome, count(*) from ...'.")],
    as_format: AsFormat = "plain",
) -> None:
    """Ask a run by SQL (DuckDB)."""
    from conformance.commands import runs

    runs.query(run, sql, as_format)


@app.command()
def explain(
    sample: SampleId,
    backend: Backend = "spyre",
    backend_import: BackendImport = None,
    backend_options: BackendOptions = None,
    device: Device = None,
    seed: Seed = 0,
    models: Models = None,
    traced: Traced = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time limit.")] = 300.0,
    as_format: AsFormat = "plain",
) -> None:
    """Run a sample again and show what happened, stage by stage.

    The ladder, the graphs, the generated code, guards, breaks and the error.
    """
    from conformance.commands import again

    raise typer.Exit(
        again.explain(
            sample,
            (backend, backend_import, backend_options, device),
            again.options(seed, models, traced),
            seconds,
            as_format,
        )
    )


@app.command()
def repro(
    sample: SampleId,
    backend: Backend = "spyre",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write, not standard output.")] = None,
    backend_import: BackendImport = None,
    backend_options: BackendOptions = None,
    device: Device = None,
    seed: Seed = 0,
    models: Models = None,
    traced: Traced = None,
) -> None:
    """Write a script that shows a failure without this suite.

    It exits with 1 while the bug is there and with 0 when it is gone.
    """
    from conformance.commands import again

    chosen = (backend, backend_import, backend_options, device)
    raise typer.Exit(again.repro(sample, chosen, again.options(seed, models, traced), output))


@app.command()
def promote(
    run: Run = "latest",
    issue: Annotated[str, typer.Option(help="URL for what is added; `wrong` and `crash` need one.")] = "",
    reason: Annotated[str, typer.Option(help="Reason for what is added.")] = "",
    torch: Annotated[str, typer.Option(help="PEP 440 specifier for what is added, e.g. '<2.15'.")] = "",
    file: Annotated[Path | None, typer.Option("--file", help="Expectations to edit, if not those of the run.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change.")] = False,
) -> None:
    """Rewrite the expectations so that a run is as expected."""
    from conformance.commands import expect

    raise typer.Exit(expect.promote(run, issue, reason, torch, file, dry_run))


@app.command()
def lint(
    files: Annotated[list[Path] | None, typer.Argument(help="Expectations; those of all suites if absent.")] = None,
    suite: Annotated[str, typer.Option(help="Suite whose cases the files are about.")] = "ops",
    run: Annotated[str | None, typer.Option("--run", help="A run to doubt flaky entries by.")] = None,
    cases: Annotated[bool, typer.Option("--cases/--no-cases", help="Look for entries that match no case.")] = True,
) -> None:
    """Find expectations that are dead, expired, overlapping, ..."""
    from conformance.commands import expect

    raise typer.Exit(expect.lint(files or [], suite, run, cases))


# --- entry -----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_status(arguments))


def _status(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        further = _further(arguments[0]) if arguments and not _is_own(command, arguments[0]) else None
        status = further(arguments[1:]) if further else command.main(arguments, "conformance", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except BrokenPipeError:  # `conformance ... | head`
        sys.stderr.close()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        from conformance.commands import mistakes

        said = _parsing(error) or (str(error) if isinstance(error, mistakes.kinds()) else None)
        if said is None:
            raise
        print(f"conformance: {said}", file=sys.stderr)
        return mistakes.MISTAKE


def _is_own(command: Any, name: str) -> bool:
    return name.startswith("-") or name in command.commands


def _further(name: str) -> Callable[[list[str]], int | None] | None:
    from importlib.metadata import entry_points

    found = list(entry_points(group=GROUP, name=name))
    return found[0].load() if found else None


def _parsing(error: Exception) -> str | None:
    """One line for an error of the command-line parser, whichever copy of it Typer uses."""
    if not hasattr(error, "format_message"):
        return None
    place = getattr(getattr(error, "ctx", None), "command_path", "")
    hint = f" (see {place} --help)" if place else ""
    return " ".join(str(error.format_message()).split()) + hint


if __name__ == "__main__":
    main()
