"""The backend's own source as part of Inductor's cache keys, so that an edit never meets a stale program."""

import functools
import hashlib
from pathlib import Path

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
def own_digest() -> str:
    """Hash of this backend's source, taken once: a process runs the code that it imported, whatever the files say."""
    return source_digest(Path(__file__).resolve().parent.parent)
