"""Finding backends, and what is said when there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.backends import registry
from conformance.backends.protocol import BackendError, Capabilities

GOOD = """
class Good:
    name = "good"
    protocol_version = 1
    device = "cpu"
    imports = "import torch"
    compile_source = "fn"
    def __init__(self, options=None):
        self.options = options
    def availability(self): return True, "1.0"
    def capabilities(self): return {"device": "cpu", "dtypes": ["float32"]}
    def setup(self): pass
    def compile(self, fn, *, dynamic, fullgraph=False): return fn

instance = Good()
def factory(device="cpu"):
    made = Good()
    made.device = device
    return made

class Newer(Good):
    protocol_version = 99

class Wordy(Good):
    name = 7

class Bare:
    name = "bare"

def broken():
    raise RuntimeError("no licence\\nfound")

number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(GOOD)
    return str(path)


@pytest.mark.parametrize("name", ["Good", "instance", "factory"])
def test_a_class_an_instance_and_a_factory_in_a_file(file: str, name: str) -> None:
    backend = registry.find(f"{file}:{name}")
    assert backend.name == "good"
    assert registry.capabilities(backend) == Capabilities(device="cpu", dtypes=("float32",))


def test_options_and_device_reach_the_factory(file: str) -> None:
    assert registry.find(f"{file}:Good", backend_options={"a": 1}).options == {"a": 1}  # type: ignore[attr-defined]
    assert registry.find(f"{file}:factory", device="cuda").device == "cuda"


def test_the_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "beside_own_backend.py").write_text(GOOD)
    (tmp_path / "entry.py").write_text("from beside_own_backend import Good")
    assert registry.find(f"{tmp_path / 'entry.py'}:Good").name == "good"


def test_an_installed_module() -> None:
    assert registry.find("conformance.backends.eager:EagerBackend").name == "eager"


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("induktor", "no backend 'induktor': did you mean 'inductor'?"),
        ("zzz", "installed are dynamo, eager, inductor"),
        ("compile:", "nothing follows the colon"),
        ("device:", "nothing follows the colon"),
        ("nowhere.py:Thing", "there is no file nowhere.py"),
        ("no_such_module_here:Thing", "cannot import no_such_module_here: ModuleNotFoundError"),
        ("conformance.backends.eager:EagerBackendd", "did you mean 'EagerBackend'?"),
    ],
)
def test_what_is_not_there(spec: str, says: str) -> None:
    with pytest.raises(BackendError) as caught:
        registry.find(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "say which object"),
        ("Goood", "nothing there is called 'Goood'; did you mean 'Good'?"),
        ("Newer", "protocol_version is 99, this suite speaks 1"),
        ("Wordy", "attribute 'name' must be str, not int"),
        ("Bare", "has no attribute 'device' (str)"),
        ("broken", "cannot be made: RuntimeError: no licence"),
        ("number", "has no method compile()"),
    ],
)
def test_what_is_wrong_with_an_object_in_a_file(file: str, name: str, says: str) -> None:
    with pytest.raises(BackendError) as caught:
        registry.find(f"{file}:{name}" if name else file)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("import no_such_thing\n")
    with pytest.raises(BackendError, match=r"bad\.py does not load: ModuleNotFoundError"):
        registry.find(f"{path}:X")
    path.write_text("class X(:\n")
    with pytest.raises(BackendError, match="SyntaxError"):
        registry.find(f"{path}:X")


@pytest.mark.parametrize(
    ("spec", "given", "says"),
    [
        ("eager", {"device": "cuda"}, "takes no --device"),
        ("eager", {"backend_options": {"a": 1}}, "takes no --backend-options"),
        ("eager", {"backend_import": ("torch",)}, "--backend-import goes with"),
        ("mutant", {"backend_options": {"damage": "nann"}}, "did you mean 'nan'?"),
        ("mutant", {"backend_options": {"colour": 1}}, "no option 'colour'"),
        ("device:x", {"backend_options": {"mode": "quick"}}, "mode 'quick' is not one of inductor, eager"),
    ],
)
def test_what_a_backend_does_not_take(spec: str, given: dict, says: str) -> None:
    with pytest.raises(BackendError, match=says):
        registry.find(spec, **given)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"device": "cpu", "dtype": ["float32"]}, r"unknown field `dtype`.*fields: device, dtypes"),
        ({"device": 1}, r"Expected `str`, got `int` - at `\$.device`"),
        ({}, "missing required field `device`"),
        ({"device": "cpu", "number_formats": ["fp32"]}, r"at `\$.number_formats`"),
        (None, "Expected `object`"),
    ],
)
def test_capabilities_that_are_not_right(file: str, declared: object, says: str) -> None:
    backend = registry.find(f"{file}:Good")
    backend.capabilities = lambda: declared  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(BackendError, match=says):
        registry.capabilities(backend)


def test_all_are_listed_without_torch() -> None:
    code = (
        "import sys\n"
        "from conformance.backends import registry\n"
        "found = {item.name: item for item in registry.available()}\n"
        "assert 'torch' not in sys.modules and 'openvino' not in sys.modules\n"
        "for name in ('eager', 'dynamo', 'mutant', 'inductor', 'openvino', 'spyre', 'torch_spyre', 'torch_sendnn'):\n"
        "    assert found[name].detail, name\n"
        "assert found['eager'].available\n"
        "assert registry.is_known('spyre') and not registry.is_known('spyr')\n"
    )
    # The first listing with a torch may build the simulated device.
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_one_that_fails_to_load_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    entries = [
        EntryPoint("broken", "no_such_module_here:X", registry.GROUP),
        EntryPoint("eager", "conformance.backends.eager:EagerBackend", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    broken, eager = registry.available()
    assert not broken.available
    assert broken.detail.startswith("does not load: ModuleNotFoundError")
    assert eager.available
    with pytest.raises(BackendError, match="backend 'broken' does not load"):
        registry.find("broken")
