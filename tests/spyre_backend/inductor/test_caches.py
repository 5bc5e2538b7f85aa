"""Inductor's caches: a second process is served from them, reports the same, and never gets a stale program."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spyre_backend
from spyre_backend import numerics
from spyre_backend.inductor.cache_key import own_digest, source_digest

PACKAGE = Path(spyre_backend.__file__).parent

# compiles with gradients, so that both of upstream's caches are involved
SCRIPT = """
import json, torch, spyre_backend
from torch._dynamo.utils import counters
from spyre_backend.report import compilations
x = torch.tensor([3.0, 5.0]).to("spyre").requires_grad_()
y = torch.tensor([1.0, 2.0]).to("spyre")
result = torch.compile(lambda x, y: x + y, fullgraph=True)(x, y)
hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
print(json.dumps({
    "result": result.tolist(),
    "hit": hits > 0,
    "package": spyre_backend.__file__,
    "compilations": [[c.lowered, c.extern, c.programs, c.runs] for c in compilations],
}))
"""


def _process(tmp_path: Path) -> dict:
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    environment.pop("TORCHINDUCTOR_FORCE_DISABLE_CACHES", None)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_a_change_of_the_source_is_a_miss_and_nothing_else_is(tmp_path: Path) -> None:
    copy = tmp_path / "spyre_backend"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    cold = _process(tmp_path)
    assert cold["package"].startswith(str(copy))
    assert (cold["result"], cold["hit"]) == ([4.0, 7.0], False)
    assert cold["compilations"][0][0] == {"aten::add.Tensor": 1}

    warm = _process(tmp_path)
    assert (warm["result"], warm["hit"]) == ([4.0, 7.0], True)
    assert warm["compilations"] == cold["compilations"]

    handler = copy / "inductor" / "handler.py"
    handler.write_text(handler.read_text().replace('"add": _E.ADD', '"add": _E.SUB'))
    changed = _process(tmp_path)
    assert (changed["result"], changed["hit"]) == ([2.0, 3.0], False)


def test_the_digest_sees_every_source_file(tmp_path: Path) -> None:
    for name in ("a.py", "csrc/b.cpp", "csrc/c.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    (tmp_path / "notes.txt").write_text("one")
    before = source_digest(tmp_path)
    (tmp_path / "notes.txt").write_text("two")
    assert source_digest(tmp_path) == before
    digests = {before}
    for name in ("a.py", "csrc/b.cpp", "csrc/c.h"):
        (tmp_path / name).write_text("two")
        digests.add(source_digest(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "d.py")
    digests.add(source_digest(tmp_path))
    assert len(digests) == 5


def test_the_digest_is_that_of_the_package_and_reaches_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_digest() == source_digest(PACKAGE)
    codecache = pytest.importorskip("torch._inductor.codecache")
    spyre_backend.inductor.register()
    from torch._inductor.codegen.common import custom_backend_passes

    codecache.init_backend_registration()
    key = custom_backend_passes["spyre"].uuid()
    assert key.startswith(own_digest())
    monkeypatch.setattr(numerics, "MODE", numerics.Numerics.DL16)
    assert custom_backend_passes["spyre"].uuid() not in ("", key), "programs of the one mode are stale in the other"
