"""Where results come from: the revision of this suite, and hashes of what was run. Pure."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from pathlib import Path


def revision() -> str:
    """The git revision of this suite, with `+` where files differ from it; empty where it is not a checkout."""
    here = Path(__file__).parent
    try:
        found = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return found + ("+" if changed else "")


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def hash_of(lines: Iterable[str]) -> str:
    """A hash of a set of lines: their order does not matter."""
    digest = hashlib.sha256()
    for line in sorted(lines):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:16]
