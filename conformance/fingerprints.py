"""Fingerprints: one cause, one short readable text, on every machine and in every run.

    NotImplementedError:no int64 sort@lower:sort
    crash:SIGSEGV in at::native::sort@run:sort
    wrong:values/far@compare:softmax

What is in front of `@` is the cause (exception type and normalised message, or outcome and detail); behind it stand the
stage and the op. So a pin `NotImplementedError:no int64 sort` or `NotImplementedError:*` holds for every op, and
`*@lower:sort` for every cause. Wrappers of upstream (BackendCompilerFailed, InductorError, LoweringException, ...) are
taken off: which of them surround an error changes between versions, and the stage says where it arose.
Pure: never imports torch.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from conformance.judgement.findings import Check
from conformance.outcomes import Outcome, Stage
from conformance.stages import chain

LIMIT = 120  # characters of a normalised message; messages differ early, tails are hints and dumps

WRAPPERS = frozenset(
    {
        "BackendCompilerFailed",
        "InductorError",
        "LoweringException",
        "SubprocException",
        "TorchRuntimeError",
        "InternalTorchDynamoError",
        "WrapperCodegenError",
    }
)
"""Exception types of upstream that quote the error they wrap."""

_ERROR_NAME = r"_*[A-Z]\w*(?:Error|Exception|Failed|Unsupported|Interrupt|Limit\w*|Warning|Iteration)|Unsupported"
_QUOTED_ERROR = re.compile(rf"\s*(?:[a-z_]\w*\.)*({_ERROR_NAME})(?::\s|:?\s*$)(.*)", re.DOTALL)
_FAKE_RUN = re.compile(r"failed to run FX node with fake tensors: .*?: got (\w+)\((['\"])(.*?)\2\)", re.DOTALL)
_RAISED = re.compile(r"\s*backend='[^']*' raised:\s*")
_DIAGNOSTIC = re.compile(r"^[^\s].*?:\d+(?::\d+)?: (?:fatal )?error: (.+)$", re.MULTILINE)  # g++, clang, MLIR
_CONTEXT = re.compile(r"^\s*Developer debug context: (.+)$", re.MULTILINE)
_ONLY_A_PLACE = re.compile(r"\s*Exception from \S+:\d+:\s*")  # how OpenVINO begins its messages
_TRACEBACK = re.compile(r"\s*Traceback \(most recent call last\):")

_POINTING = re.compile(r"\bsee (?:the )?(?:diagnostics|log|output|stderr)\b", re.IGNORECASE)
_ADVICE = "Set TORCHDYNAMO_VERBOSE="
"""How Dynamo begins what it appends to the messages of others."""

GENERIC = frozenset(
    {
        "list index out of range",
        "tuple index out of range",
        "pop from empty list",
        "dictionary changed size during iteration",
        "maximum recursion depth exceeded",
    }
)
"""Messages that name no cause; like empty ones they are given the function in which they arose."""

DUMPS = """tensor FakeTensor Parameter TensorBox StorageBox ComputedBuffer InputBuffer ConstantBuffer Pointwise
Reduction View ReinterpretView FixedLayout FlexibleLayout FallbackKernel"""
"""Types whose text is their content."""

_DTYPE = r"(?:i(?:1|4|8|16|32|64)|f(?:8|16|32|64)|c(?:64|128))\b"  # as MLIR writes them; not names of indices

REPLACEMENTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\x1b\[[0-9;]*[A-Za-z]", ""),  # colours
        (r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+", " "),
        (r"https?://\S+", ""),
        (r"(?: of type object| of [\w.]+ object| object)? at 0x[0-9a-fA-F]+", ""),
        (r"\b0x[0-9a-fA-F]+\b", "<address>"),
        (r"(?<![\w/])(?:[A-Za-z]:)?[\w.+~-]*(?:/[\w.+~-]+)+\.[A-Za-z]\w*(?::\d+)*", "<file>"),
        (r"(?<![\w/.)\]])/(?:[\w.+~-]+/)+[\w.+~-]*", "<file>"),
        (r"(\.[A-Za-z]\w{0,3}):\d+(?::\d+)?\b", r"\1"),  # line and column behind a file's name
        (r",? (?:on |at )?line \d+\b", ""),
        (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<hash>"),
        (r"\b(?=[a-z]*\d)(?=\d*[a-z])(?:[0-9a-f]{12,}|[a-z0-9]{30,})\b", "<hash>"),
        (rf"\b(?!{_DTYPE})[su]\d+\b", "N"),  # symbolic sizes are numbers
        (
            rf"\b(?!{_DTYPE})([a-rtv-z]|buf|tmp|arg|op|ks|zuf|zf|getitem|primals|tangents|getattr)_?\d+(?:_\d+)*\b",
            r"\1",
        ),
        (r"\b([A-Za-z_][A-Za-z0-9_]*?[A-Za-z])(?:_\d+)+\b", r"\1"),  # add_12, triton_poi_fused_add_0
        (r"\b([a-z][a-z_]*):\d+\b", r"\1"),  # cuda:0
        (r"\b\d+(?:\.\d+)+(?:\.?(?:dev|rc|post|a|b)\d+)?(?:\+[\w.]+)\b", "N"),  # 2.13.0+cpu
        (r"\b(?:N|\d+)(?: ?[x×] ?(?:N|\d+))+\b", "N"),  # 2x3
        (
            r"(?<![A-Za-z_\d.])(?<![A-Za-z_\d][-+])[-+]?(?:\d[\d_]*(?:\.\d+)*\.?|\.\d+)(?:[eE][-+]?\d+)?"
            r"(?!\d|-?[dD]\b|-?dim)",
            "N",
        ),
        (r"\[ *\]", "[N]"),  # the size of a scalar
        (r"\bN(?: ?(?:\*\*|//|[-*+/]) ?N\b)+", "N"),
        (r"\bN(?:(?:,| |;|, )N\b)+,?", "N"),
        (r"([\[(])N,([\])])", r"\1N\2"),
        (r"[\[(]N[\])](?:,? ?[\[(]N[\])])+", "[N]"),  # lists of sizes
        (r" +", " "),
        (r"^[ .:;,]+|[ .:;,]+$", ""),
    )
)
"""What differs between machines, runs and samples of one cause, and what stands for it; applied in order."""


class Parts(NamedTuple):
    cause: str
    stage: str
    op: str


def of_error(error: str, message: str, *, op: str, stage: Stage | str | None) -> str:
    """The fingerprint of an exception, from the name of its type and its text."""
    kind, text = unwrap(error, message)
    return _join(f"{kind.lstrip('_')}:{normalise(text)}", stage, op)


def of_exception(error: BaseException, *, op: str, stage: Stage | str | None) -> str:
    """The same from the exception itself; one that says nothing is given the function in which it arose."""
    kind, text = unwrap(type(error).__name__, str(error))
    said = normalise(text)
    if said in GENERIC or not re.search(r"[A-Za-z]{4}", said):
        said = f"{said} in {_function(error, kind)}".strip()
    return _join(f"{kind.lstrip('_')}:{said}", stage, op)


def of_finding(check: str, error_class: str = "", *, op: str) -> str:
    """The fingerprint of a wrong result: which check complained, and about which kind of error."""
    detail = "/".join(normalise(part) for part in (check, error_class) if part)  # apart: together they look like a path
    return _join(f"{Outcome.WRONG}:{detail}", Stage.COMPARE, op)


def check_of(fingerprint: str) -> Check | None:
    """Which check the fingerprint of a wrong result is of; None if it is of none."""
    return next((check for check in Check if re.match(rf"{Outcome.WRONG}:{normalise(check)}[/@]", fingerprint)), None)


def of_budget(message: str, *, op: str, stage: Stage | str | None = Stage.RUN) -> str:
    """The fingerprint of an exceeded budget, from the sentence that says which."""
    return _join(f"{Outcome.BUDGET}:{normalise(message)}", stage, op)


def of_death(
    outcome: Outcome,
    *,
    op: str,
    stage: Stage | str | None,
    signal: str = "",
    exit_code: int | None = None,
    place: str = "",
) -> str:
    """The fingerprint of a process that died or was killed; `place` is the function in which it was, where known.

    No signal stands for a process that we killed: the outcome (timeout, oom) says why.
    """
    killed_by_us = outcome in (Outcome.TIMEOUT, Outcome.OOM)
    how = "" if killed_by_us else signal or (f"exit {exit_code}" if exit_code is not None else "")
    where = re.split(r" \(|:\d", place, maxsplit=1)[0]
    detail = " in ".join(filter(None, [how, normalise(where)]))
    return _join(f"{outcome}:{detail}" if detail else str(outcome), stage, op)


def split(fingerprint: str) -> Parts:
    """Cause, stage and op of a fingerprint."""
    cause, at, place = fingerprint.rpartition("@")
    if not at:
        return Parts(fingerprint, "", "")
    stage, _, op = place.partition(":")
    return Parts(cause, stage, op)


def _join(cause: str, stage: Stage | str | None, op: str) -> str:
    return f"{cause}@{stage or 'unknown'}:{op}"


def unwrap(error: str, message: str) -> tuple[str, str]:
    """Type and text of the error that upstream's wrappers quote; the given ones where there is no wrapper."""
    for _ in range(8):  # wrappers nest three or four deep
        message = _RAISED.sub("", message, count=1) if _RAISED.match(message) else message
        fake = _FAKE_RUN.search(message)
        if fake and error in WRAPPERS:
            return fake[1], fake[3].replace("\\n", "\n")
        quoted = _QUOTED_ERROR.match(message) if error in WRAPPERS else None
        if quoted is None:
            break
        error, message = quoted[1], quoted[2]
    if _TRACEBACK.match(message):
        last = [line for line in message.splitlines() if line and not line[0].isspace()]
        quoted = _QUOTED_ERROR.match(last[-1]) if len(last) > 1 else None
        if quoted is not None:
            return quoted[1], quoted[2]
    return error, message


def with_diagnostic(message: str, output: str) -> str:
    """The message of an error, with the first error that a compiler printed where it only points there."""
    pointing, advice, rest = message.partition(_ADVICE)
    printed = _DIAGNOSTIC.search(output) if _POINTING.search(pointing) else None
    return f"{pointing.rstrip()}\n{printed[0]}\n\n{advice}{rest}".rstrip() if printed else message


def normalise(message: str) -> str:
    """The part of a message that names the cause, without what differs between machines, runs and samples."""
    text = _telling_line(message.partition(_ADVICE)[0])
    for _ in range(12):  # one replacement may expose another; a few rounds reach the end
        before = text
        text = _collapse_dumps(text)
        for pattern, replacement in REPLACEMENTS:
            text = pattern.sub(replacement, text)
        text = _shortened(text)
        if text == before:
            break
    return text


def _telling_line(message: str) -> str:
    """The first line, with the next ones where it only announces them, and what compilers say beside it."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _ONLY_A_PLACE.fullmatch(line)]
    if not lines:
        return ""
    first, rest = lines[0], lines[1:]
    for _ in range(3):
        if first.endswith(":") and rest:
            first, rest = f"{first} {rest[0]}", rest[1:]
    tail = "\n".join(rest)
    diagnostic = _DIAGNOSTIC.search(tail)
    if diagnostic:
        return f"{first.rstrip('. ')}: {diagnostic[1]}"
    context = _CONTEXT.search(message)
    return f"{first} ({context[1].strip()})" if context and context[1].strip() else first


def _collapse_dumps(text: str) -> str:
    """`FakeTensor(..., size=(3,))` -> `FakeTensor(...)`, for every type that prints its content."""
    pattern = re.compile(rf"\b({'|'.join(DUMPS.split())})\(")
    done, position = [], 0
    while found := pattern.search(text, position):
        end = _closing(text, found.end())
        done.append(text[position : found.end()] + "...)")
        position = end
    return "".join(done) + text[position:]


def _closing(text: str, position: int) -> int:
    """Where the parenthesis that was opened just before `position` has closed; the end of the text if it has not."""
    depth = 1
    while position < len(text) and depth:
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        position += 1
    return position


def _shortened(text: str) -> str:
    if len(text) <= LIMIT:
        return text
    cut = text[: LIMIT - 1]
    return (cut[: cut.rfind(" ")] if cut.rfind(" ") > LIMIT // 2 else cut).rstrip(" .:;,") + "…"


def _function(error: BaseException, kind: str) -> str:
    """Name of the innermost function of the wrapped exception of that type, or of the outermost one."""
    found = next((item for item in chain(error) if type(item).__name__ == kind), error)
    traceback = found.__traceback__
    if traceback is None:
        return "an unknown place"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_name
