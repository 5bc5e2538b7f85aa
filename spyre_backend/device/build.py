"""Builds the C++ part of the device on first use and keeps it in a cache, one build for each torch, ABI and source.

The compiler is called directly: no build system has to be installed. A lock that the operating system drops with its
owner makes processes that start together build once, and a killed builder holds nobody up.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

from spyre_backend.device.errors import DeviceBuildError

SOURCES = Path(__file__).resolve().parent.parent / "csrc"
MODULE = "spyre_backend.device._C"
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-w")
LIBRARIES = ("torch_python", "torch_cpu", "c10")
LOCK_TIMEOUT = 900.0  # seconds that one build may take before those who wait for it give up


def cache_root() -> Path:
    """The directory that holds all builds: `$SPYRE_BACKEND_CACHE`, or the user's cache directory."""
    if chosen := os.environ.get("SPYRE_BACKEND_CACHE"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "spyre_backend"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spyre_backend"


def build_key() -> str:
    """Names one build: changes with torch, Python's and C++'s ABI, the compiler that `CXX` names, and the sources."""
    digest = hashlib.sha256()
    facts = (
        torch.__version__,
        str(torch.version.git_version),
        str(torch.compiled_with_cxx11_abi()),
        str(sysconfig.get_config_var("SOABI")),
        os.environ.get("CXX", ""),
        *FLAGS,
    )
    digest.update("\0".join(facts).encode())
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"torch-{torch.__version__}-{digest.hexdigest()[:16]}"


def load() -> ModuleType:
    """The extension module, built first if no build of these sources for this torch is in the cache.

    Raises `DeviceBuildError` with one line that says what is missing or what failed.
    """
    key = build_key()
    root = cache_root()
    library = root / key / "_C.so"
    if library.exists():
        with contextlib.suppress(ImportError):
            return _import(library)
        # Not loadable here, e.g. cut short by a full disk: build it again.
        library.unlink(missing_ok=True)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot write the build cache {root} (SPYRE_BACKEND_CACHE chooses another): {error}"
        raise DeviceBuildError(message) from None
    with _locked(root / f"{key}.lock"):
        if not library.exists():
            _build(library)
    try:
        return _import(library)
    except ImportError as error:
        raise DeviceBuildError(f"the device was built but does not load: {error}") from error


def _import(library: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(library))
    spec = importlib.util.spec_from_file_location(MODULE, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    import fcntl

    with path.open("w") as lock:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    message = f"another process has been building the device for {LOCK_TIMEOUT:.0f} s ({path})"
                    raise DeviceBuildError(message) from None
                time.sleep(0.1)
        yield


def _compiler() -> str:
    if chosen := os.environ.get("CXX"):
        if found := shutil.which(chosen.split()[0]):
            return " ".join([found, *chosen.split()[1:]])
        raise DeviceBuildError(f"CXX names {chosen!r}, which is not a program on the path")
    for name in COMPILERS:
        if found := shutil.which(name):
            return found
    raise DeviceBuildError(f"no C++ compiler: install one of {', '.join(COMPILERS)}, or name yours in CXX")


def _build(library: Path) -> None:
    compiler = _compiler().split()
    python_include = sysconfig.get_path("include")
    if not Path(python_include, "Python.h").exists():
        raise DeviceBuildError(f"no Python.h in {python_include}: install the headers of this Python (python3-dev)")
    torch_root = Path(torch.__file__).parent
    include = torch_root / "include"
    includes = [f"-isystem{path}" for path in (include, include / "torch" / "csrc" / "api" / "include", python_include)]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    library.parent.mkdir(parents=True, exist_ok=True)
    for left_over in library.parent.glob("build-*"):  # of a builder that was killed: we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="build-", dir=library.parent))
    try:
        # The biggest first: with few cores the order decides how long the last one is waited for.
        sources = sorted(SOURCES.glob("*.cpp"), key=lambda source: -source.stat().st_size)
        objects = [work / f"{source.stem}.o" for source in sources]
        _run_all(
            [
                [*compiler, *FLAGS, abi, *includes, "-c", str(source), "-o", str(target)]
                for source, target in zip(sources, objects, strict=True)
            ]
        )
        libraries = [f"-l{name}" for name in LIBRARIES]
        search = [f"-L{torch_root / 'lib'}", f"-Wl,-rpath,{torch_root / 'lib'}"]
        output = work / library.name
        _run_all([[*compiler, "-shared", *map(str, objects), *search, *libraries, "-o", str(output)]])
        output.replace(library)  # in one step: whoever sees the file sees all of it
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_all(commands: list[list[str]]) -> None:
    """Run commands side by side, as many as there are cores; raise the first error that one of them prints."""
    waiting = list(reversed(commands))
    running: list[subprocess.Popen[str]] = []
    try:
        while waiting or running:
            while waiting and len(running) < (os.cpu_count() or 1):
                command = waiting.pop()
                running.append(
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
                    )
                )
            process = running.pop(0)
            output, _ = process.communicate()
            if process.returncode != 0:
                lines = [line for line in output.splitlines() if "error" in line] or output.splitlines() or [""]
                command_line = " ".join(map(str, process.args)) if isinstance(process.args, list) else ""
                raise DeviceBuildError(f"building the device failed: {lines[0].strip()} (command: {command_line})")
    finally:
        for process in running:
            process.kill()
            process.wait()
