"""What the suite itself costs: `make bench`, or `python -m conformance.bench`.

Every figure comes from running the real commands. Compare figures of one run only: machines and their load differ.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from tabulate import tabulate

from conformance import store
from conformance.records import Record

Row = tuple[str, str, str]
"""(what, measured, at most), ready to print."""

HELP_S = 0.3
COLLECTION_S = 6.0
JUDGING_RATIO = 1.5
SAMPLE_CPU_S = 0.15
WORKER_MEMORY = 2.5e9
POLL_S = 0.5


def measure_help(repeat: int = 5) -> Row:
    """Wall seconds of `conformance --help`, the best of `repeat`."""
    command = [sys.executable, "-m", "conformance.cli", "--help"]
    best = min(_seconds(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(repeat))
    return ("conformance --help", f"{best:.2f} s", f"{HELP_S} s")


def measure_collection(suite: str, backend: str, tier: str) -> Row:
    """Wall seconds in which one worker collects the cases of a tier, imports and all."""
    command = [sys.executable, "-m", "pytest", suite, "--backend", backend, "--tier", tier, "--collect-only", "-qq"]
    seconds = _seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    return (f"collection, {tier} tier, one worker", f"{seconds:.1f} s", f"{COLLECTION_S} s")


def measure_sweep(suite: str, backend: str, tier: str, workers: str) -> list[Row]:
    """Runs a tier and reports the cost of a sample and the memory of a worker."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "pytest", "-n", workers, suite, "--backend", backend, "--tier", tier]
        command += ["--run-dir", str(run), "-q", "--no-header", "-p", "no:cacheprovider"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = max(_worker_memory(process), default=0)
        wall = time.perf_counter() - start
        records = [record for record in store.read(run) if record.cpu_s is not None and record.backend_cpu_s]
    if not records:
        raise SystemExit(f"bench: no sample of {suite} ran on {backend}")
    return [*sample_rows(records), _wall_row(tier, wall, len(records)), _memory_row(peak)]


def sample_rows(records: list[Record]) -> list[Row]:
    """Median cost of a sample, and how much of it is ours. CPU seconds, ladder left out."""
    whole = [record.cpu_s for record in records if record.cpu_s is not None]
    alone = [record.backend_cpu_s for record in records if record.backend_cpu_s is not None]
    ratio = statistics.median(whole) / statistics.median(alone)
    tenth = statistics.quantiles(whole, n=10)[-1] if len(whole) > 1 else whole[0]
    return [
        (
            "a sample, compiled, run and judged: median",
            f"{statistics.median(whole):.3f} CPU s",
            f"{SAMPLE_CPU_S} CPU s",
        ),
        ("the same: 90th percentile", f"{tenth:.3f} CPU s", ""),
        ("compile and run alone: median", f"{statistics.median(alone):.3f} CPU s", ""),
        ("with judging / compile and run alone", f"{ratio:.2f}", f"{JUDGING_RATIO}"),
    ]


def _wall_row(tier: str, wall: float, samples: int) -> Row:
    return (f"{tier} tier, {samples} samples, wall", f"{wall:.0f} s", "")


def _memory_row(peak: int) -> Row:
    return ("peak memory of a worker and its children (PSS)", f"{peak / 1e9:.2f} GB", f"{WORKER_MEMORY / 1e9} GB")


def _worker_memory(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """Bytes of the largest worker tree at each poll until the process ends. Shared pages count once (PSS)."""
    root = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            trees = [[worker, *worker.children(recursive=True)] for worker in root.children()]
        except psutil.NoSuchProcess:
            break
        for tree in trees:
            yield sum(map(_pss, tree))
        time.sleep(POLL_S)
    process.wait()


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return 0


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main(argv: list[str] | None = None) -> int:
    """Print the table of figures beside what they may be at most."""
    parser = argparse.ArgumentParser(prog="python -m conformance.bench", description=__doc__)
    parser.add_argument("--suite", default="op_coverage", help="folder of the suite (default: %(default)s)")
    parser.add_argument("--backend", default="spyre")
    parser.add_argument("--tier", default="smoke")
    parser.add_argument("-n", "--workers", default="auto")
    options = parser.parse_args(argv)
    rows = [measure_help(), measure_collection(options.suite, options.backend, "pr")]
    rows += measure_sweep(options.suite, options.backend, options.tier, options.workers)
    print(tabulate(rows, headers=("what", "measured", "at most"), tablefmt="github"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
