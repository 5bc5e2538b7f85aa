"""Self-contained scripts that show a failure: they import torch and the backend's own package, and nothing of ours.

A script exits with 1 while the bug is there and with 0 when it is gone. It makes the inputs bit for bit, runs the
callable in eager mode on the CPU and through the backend, and looks at the one thing that was found wrong. What may
kill the process runs in a subprocess of the script itself.

Pure: it makes the text from what `diagnosis` has found.
"""

from __future__ import annotations

import json
import re

import msgspec

from conformance.judgement.findings import Check
from conformance.outcomes import Outcome

LINES = 40  # of a script, at most
SEED = 20_240_229  # the one that the engine uses for each call; a test holds it equal
MEMORY = 4 * 2**30  # bytes that the script allows what ran out of memory
SECONDS = 120  # that it allows what did not end


class CannotRepro(ValueError):
    """No script can show this; the message says why, in one line."""


class Setting(msgspec.Struct, kw_only=True):
    """The call, as source."""

    sample: str
    backend: str
    imports: str
    compiled: str  # expression for the compiled callable, from `fn`
    device: str
    fn: str
    setup: str = ""  # statements on which `fn` relies
    module: bool = False  # whether `fn` holds parameters, which must be on the device
    call: str = "call(*args, **kwargs)"
    statements: list[str]  # make the tensors
    calls: list[str]  # "(args, kwargs)", in order
    backward: bool = False


class Failure(msgspec.Struct, kw_only=True):
    """What went wrong."""

    outcome: Outcome
    stage: str = ""
    fingerprint: str = ""
    message: str = ""
    check: Check | None = None  # of a wrong result
    error_class: str = ""
    where: str = ""  # "output[0]", "args[0].grad", "replay[1] output"
    atol: float = 0.0  # what two right answers may differ by, there
    eager_raises: str = ""  # class of the exception that eager on the CPU raises
    on_device: bool = False  # eager on the device fails, not what was compiled


NUMBERS = frozenset({Check.VALUES, Check.SPECIAL, Check.MUTATION})

DIFFERS: dict[Check, str] = {
    Check.DTYPE: "got.dtype != want.dtype",
    Check.SHAPE: "got.shape != want.shape",
    Check.STRIDES: "got.stride() != want.stride()",
    Check.LAYOUT: "got.layout != want.layout",
    Check.DEVICE: "got.device.type != torch.device({device}).type",
    Check.TYPE: "type(got) is not type(want)",
    Check.REQUIRES_GRAD: "got.requires_grad != want.requires_grad",
    Check.GRADIENT: "(got is None) != (want is None)",
    Check.ALIAS: "got != want",
    Check.STRUCTURE: "got != want",
    Check.VALUES: "not same(got, want)",
    Check.SPECIAL: "not same(got, want)",
    Check.MUTATION: "not same(got, want)",
}
"""Whether the bug is there, from what the place that was found wrong has on the backend (`got`) and in eager."""

PICKED: dict[Check, str] = {
    Check.ALIAS: "[{place} is x or {place}.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() "
    "for x in flat((args, kwargs)) if isinstance(x, torch.Tensor)]",
    Check.STRUCTURE: "[type(x).__name__ for x in flat({place})]",
}
"""What of the place is compared, where it is not its value."""

WHOLE_MEMORY = "torch.empty(0, dtype={place}.dtype, device={place}.device).set_({place}.untyped_storage())"

NOT_SHOWN: dict[Check, str] = {
    Check.PROPERTY: "the check is code of the suite",
    Check.LOOSE: "the tolerance is too wide to call anything wrong",
    Check.UNCOMPARABLE: "the result cannot be brought back from the device",
    Check.NOTHING: "nothing was compared",
}

# --- pieces of a script -----------------------------------------------------------------------------------------------

UNPACK = """
def unpack(text, dtype, device):
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=dtype).to(device)
"""

FLAT = """
def flat(x):
    items = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else None
    return [x] if items is None else [leaf for item in items for leaf in flat(item)]
"""

BACKWARD = """
        outs = [t for t in flat(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        grads = []
        for i, t in enumerate(outs):
            wide = torch.complex128 if t.is_complex() else torch.float64
            seeded = torch.Generator().manual_seed({seed} + i)
            grads.append(torch.randn(t.shape, dtype=wide, generator=seeded).to(t.dtype).to(t.device))
        torch.autograd.backward(outs, grads)
"""

SAME = """
def same(got, want):
    if not isinstance(want, torch.Tensor):
        return got == want or (got != got and want != want)
    got, want = (t.detach().cpu() for t in (got, want))
    if got.shape != want.shape or not (want.is_floating_point() or want.is_complex()):
        return torch.equal(got, want)
    got, want = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (got, want))
    return torch.allclose(got, want, rtol=0, atol={atol}, equal_nan=True){signs}
"""

WRONG = """
want = run(fn, "cpu")
got = run({call}, {device})
print("eager on the CPU:", want)
print("{backend}:", got)
sys.exit({differs})
"""

NO_EXCEPTION = """
try:
    run({call}, {device})
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
    sys.exit(0)
print("no exception, but eager on the CPU raises {eager_raises}")
sys.exit(1)
"""

ERROR = """
try:
    run({call}, {device})
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
    sys.exit(1)
"""

OTHER_ERROR = """
said = "no exception"
try:
    run({call}, {device})
except Exception as error:
    said = f"{{type(error).__name__}}: {{error}}"
print(said)
sys.exit("{eager_raises}" not in said)  # which is what eager on the CPU raises
"""

CHILD = """
if "--child" not in sys.argv:
    try:
        status = subprocess.run([sys.executable, __file__, "--child"], timeout={seconds}).returncode
    except subprocess.TimeoutExpired:
        status = "no end in {seconds} s"
    print("the process ended with:", status)
    sys.exit(status != 0)
{limit}run({call}, {device})
"""

LIMIT = "resource.setrlimit(resource.RLIMIT_DATA, ({memory}, {memory}))\n"


def compose(setting: Setting, failure: Failure, *, all_calls: bool = False) -> str:
    """The script. With `all_calls` it makes calls after the one that went wrong as well.

    Raises `CannotRepro` where there is nothing that a script could show.
    """
    if failure.outcome is Outcome.PASS:
        raise CannotRepro(f"{setting.sample} passes on {setting.backend}: there is nothing to show")
    if failure.outcome in (Outcome.SKIPPED, Outcome.INFRA, Outcome.BUDGET):
        raise CannotRepro(f"{setting.sample} ends in `{failure.outcome}`, which no script of its own can show")
    if failure.check in NOT_SHOWN:
        why = NOT_SHOWN[failure.check]
        raise CannotRepro(f"{setting.sample}: `{failure.check}` cannot be shown by a script of its own: {why}")
    run, end = _run(setting, failure, all_calls), _end(setting, failure)
    parts = [UNPACK] if "unpack(" in run else []
    parts += [FLAT] if "flat(" in run else []
    parts += [_same(failure)] if "same(" in end else []
    names = {"sys"} | ({"base64", "zlib"} if "unpack(" in run else set())
    names |= {name for name in ("copy", "resource", "subprocess") if f"{name}." in end}
    text = "\n".join([*_heading(setting, failure), f"import {', '.join(sorted(names))}", "", setting.imports, ""])
    constants = [f'{name} = float("{name}")' for name in ("nan", "inf") if re.search(rf"\b{name}\b", run)]
    text += (
        "\n"
        + "\n".join([*constants, *setting.setup.splitlines(), f"fn = {setting.fn}", ""])
        + "\n".join(["", *parts, run, end])
    )
    return _fitted(text, setting.sample)


def _heading(setting: Setting, failure: Failure) -> list[str]:
    at = f" at {failure.stage}" if failure.stage else ""
    message = " ".join(failure.message.split())[:200]
    lines = [f"{setting.sample} on {setting.backend}: {failure.outcome}{at}", failure.fingerprint, message]
    return [f"# {line}" for line in [*lines, "Exits with 1 while the bug is there and with 0 when it is gone."] if line]


def _run(setting: Setting, failure: Failure, all_calls: bool) -> str:
    """`run(call, device)`: what the place that was found wrong has after the calls."""
    number, place = place_of(failure.where)
    calls = setting.calls if all_calls or failure.check is None else setting.calls[: number + 1]
    picked = PICKED.get(failure.check, "{place}") if failure.check else ""
    if failure.check is Check.MUTATION and failure.error_class == "out of bounds":
        picked = WHOLE_MEMORY
    lines = ["def run(call, device):", *(f"    {line}" for line in setting.statements)]
    if len(calls) == 1:
        lines += [f"    for args, kwargs in [{calls[0]}]:"]
    else:
        lines += ["    found = []", "    for args, kwargs in [", *(f"        {call}," for call in calls), "    ]:"]
    lines += [f"        torch.manual_seed({SEED})", f"        output = {setting.call}"]
    if setting.backward:
        lines += BACKWARD.format(seed=SEED + 1).strip("\n").splitlines()
    if picked and len(calls) > 1:
        lines += [f"        found.append({picked.format(place=place)})", f"    return found[{number}]"]
    elif picked:
        lines += [f"    return {picked.format(place=place)}"]
    return "\n" + "\n".join(lines) + "\n"


def place_of(where: str) -> tuple[int, str]:
    """(number of the call, place as an expression): `replay[1] args[0] after the call` -> (2, `args[0]`)."""
    number = 0
    if where.startswith("replay["):
        head, _, where = where.partition("] ")
        number = int(head.removeprefix("replay[")) + 1
    return number, where.removesuffix(" after the call") or "output"


def _end(setting: Setting, failure: Failure) -> str:
    call = "fn" if failure.on_device else setting.compiled
    if setting.module:
        call = f"(lambda fn: {call})(copy.deepcopy(fn).to({json.dumps(setting.device)}))"
    words = {
        "call": call,
        "device": json.dumps(setting.device),
        "backend": setting.backend,
        "eager_raises": failure.eager_raises,
        "seconds": SECONDS,
        "limit": LIMIT.format(memory=MEMORY) if failure.outcome is Outcome.OOM else "",
    }
    if failure.outcome in (Outcome.CRASH, Outcome.TIMEOUT, Outcome.OOM):
        return CHILD.format(**words)
    if failure.check is Check.EXCEPTION:
        return NO_EXCEPTION.format(**words)
    if failure.check is None:
        return (OTHER_ERROR if failure.eager_raises else ERROR).format(**words)
    return WRONG.format(differs=DIFFERS[failure.check].format(**words), **words)


def _same(failure: Failure) -> str:
    signs = " and torch.equal(torch.signbit(got), torch.signbit(want))"
    return SAME.format(atol=repr(failure.atol), signs=signs if failure.error_class == "sign of zero" else "")


def _fitted(text: str, sample: str) -> str:
    """At most `LINES` lines, by leaving out those that only please the eye if need be."""
    lines = text.rstrip("\n").splitlines()
    if len(lines) > LINES:
        lines = [line for line in lines if line.strip()]
    if len(lines) > LINES:
        raise CannotRepro(f"{sample}: its script would have {len(lines)} lines, at most {LINES} are allowed")
    return "\n".join(lines) + "\n"
