"""The backend's own source as part of Inductor's cache keys, so that an edit never meets a stale program."""

import functools
import hashlib
from pathlib import Path
from typing import Any

from spyre_backend import upstream

_SOURCES = ("*.py", "*.cpp", "*.h")


def source_digest(package: Path) -> str:
    """Hash of every source file below `package`: names and contents."""
    digest = hashlib.sha256()
    for path in sorted(found for pattern in _SOURCES for found in package.rglob(pattern)):
        digest.update(str(path.relative_to(package)).encode())
        digest.update(b"\0")
        digest.update(path.read_bytes())
        digest.update(b"\0")
    return digest.hexdigest()


@functools.cache
def _own_digest() -> str:
    # once per process: a process runs the code that it imported, not what the files say later
    return source_digest(Path(__file__).resolve().parent.parent)


class SourceKey(upstream.CustomGraphModulePass):  # type: ignore[misc, name-defined]
    """A graph pass that changes nothing: Inductor asks every registered pass for an identity to hash."""

    def __call__(self, gm: Any) -> None:
        return None

    def uuid(self) -> str:
        return _own_digest()
