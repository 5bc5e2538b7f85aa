"""Learns from the error of a forward what its inputs should have been.

Each repair takes the error, the inputs that caused it and what is known about the model, and gives better inputs or
None. They read messages of torch and transformers and, where a message says too little, the variables of the frames
that the error passed through. A repair may be wrong: the next trial shows.
"""

from __future__ import annotations

import itertools
import linecache
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec

from models.zoo import layouts, recipe
from models.zoo.facts import Facts
from models.zoo.layouts import Inputs

if TYPE_CHECKING:
    import torch

BATCH, LENGTH = 2, 16
"""The sizes at which inputs are tried."""


@dataclass(frozen=True)
class Context:
    facts: Facts
    parameters: Mapping[str, bool]
    """Of the model's forward: whether each is required."""


Repair = Callable[[BaseException, Inputs, Context], Inputs | None]


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """(frame, line), from where the error was raised outwards."""
    found = list(traceback.walk_tb(error.__traceback__))
    return iter(reversed(found))


def _locals(error: BaseException) -> Iterator[tuple[str, Any]]:
    for frame, _ in _frames(error):
        yield from frame.f_locals.items()


def _is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    import torch

    return isinstance(value, torch.Tensor)


def _floating(specs: Inputs) -> list[str]:
    return [name for name, spec in specs.items() if spec.kind == "floats"]


def _sizes(spec: recipe.InputSpec) -> list[int]:
    return [recipe.size(dim, BATCH, LENGTH) for dim in spec.shape]


def _with_dim(specs: Inputs, name: str, axis: int, dim: int | str) -> Inputs:
    shape = list(specs[name].shape)
    shape[axis] = dim
    changed = {**specs, name: msgspec.structs.replace(specs[name], shape=tuple(shape))}
    return {n: _as_long_as_audio(s, changed) if n in layouts.AUDIO_MASKS else s for n, s in changed.items()}


def _replace_dim(specs: Inputs, old: int, new: int, *, last_only: bool = False) -> Inputs | None:
    """With `new` in the place of the size `old` of a float input; where several have it, of the last that has it."""
    for name in reversed(_floating(specs)):
        sizes = _sizes(specs[name])
        axes = [len(sizes) - 1] if last_only else range(len(sizes) - 1, 0, -1)
        for axis in axes:
            if sizes[axis] == old:
                return _with_dim(specs, name, axis, new)
    return None


# --- placeholders ---------------------------------------------------------------------------------------------

_KINDS = {
    "image": ("image", "img", "vision", "visual", "media", "boi"),
    "video": ("video",),
    "audio": ("audio", "speech", "sound"),
    "multimodal": ("image", "audio", "media", "video"),
}
_FEATURES = re.compile(
    r"(image|video|audio|speech|vision|visual|multimodal|mm|media)?_?(features?|embeds|embeddings|hidden_states|outputs?|last_hidden_state)"
)
_MISMATCH = re.compile(
    r"(image|video|audio|multimodal|speech)?[^.]{0,40}(do not match|does not match|mismatch)"
    r"|Got \d+ (image|video|audio)?.*for \d+ .*placeholder tokens(?: \(id (\d+)\))?",
    re.I,
)


def with_runs(specs: Inputs, name: str, runs: tuple[tuple[int, int], ...]) -> Inputs:
    """Ids with these placeholders, and all that is as long as the ids or marks the placeholders."""
    total = sum(count for _, count in runs)
    length = f"length+{total}" if total else "length"
    changed = {**specs}
    for other, spec in specs.items():
        if spec.shape and len(spec.shape) >= 2 and str(spec.shape[1]).startswith("length") and spec.kind != "floats":
            if other.startswith("decoder"):
                continue
            changed[other] = msgspec.structs.replace(spec, shape=(spec.shape[0], length, *spec.shape[2:]))
    changed[name] = msgspec.structs.replace(changed[name], runs=runs)
    for marker in ("mm_token_type_ids", "token_type_ids"):
        if marker in changed:
            changed[marker] = msgspec.structs.replace(
                changed[marker], kind="ids", low=0, high=1, runs=tuple((1, n) for _, n in runs)
            )
    return changed


def _wanted_placeholders(error: BaseException) -> list[int]:
    """How many rows of features there were, by the variables and the message: candidates, the likeliest first."""
    found: list[int] = []
    width = None
    for name, value in _locals(error):
        if name == "inputs_embeds" and _is_tensor(value):
            width = value.shape[-1]
            break
    for name, value in _locals(error):
        if _FEATURES.fullmatch(name) and _is_tensor(value) and value.is_floating_point() and value.dim() >= 2:
            found.append(value.numel() // (width or value.shape[-1]))
            if len(found) > 3:
                break
    found += [int(a or b) for a, b in re.findall(r"features:? *(\d+)|Got (\d+)", str(error))]
    found += [int(n) for n in re.findall(r"(\d+)", str(error))]
    return found


def placeholders(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """As many placeholder tokens as there are features of an image, a video or a piece of audio."""
    message = str(error)
    found = _MISMATCH.search(message)
    if found is None or not re.search(r"token|placeholder|feature", message, re.I):
        return None
    kind = (found.group(1) or found.group(3) or "multimodal").lower()
    kind = "audio" if kind == "speech" else kind
    name = next((n for n in ("input_ids", "decoder_input_ids") if n in specs), None)
    token = int(found.group(4)) if found.group(4) else context.facts.token(*_KINDS[kind])
    if name is None or token is None:
        return None
    runs = [run for run in specs[name].runs if run[0] != token]
    have = sum(n for t, n in specs[name].runs if t == token)
    for total in _wanted_placeholders(error):
        each, rest = divmod(total, BATCH)
        if rest == 0 and each != have and 0 < each <= 4096:
            return with_runs(specs, name, (*runs, (token, each)))
    return None


def idle_image(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """Placeholders for features that a model left out because there were none."""
    found = re.search(r"do not depend on (.*)", str(error))
    name = next((n for n in ("input_ids", "decoder_input_ids") if n in specs), None)
    if found is None or name is None:
        return None
    kind = layouts.MODALITIES.get(found.group(1).split(", ")[0], "")
    token = context.facts.token(*_KINDS.get(kind, ()))
    if token is None or any(run[0] == token for run in specs[name].runs):
        return None
    count = context.facts.number("num_query_tokens", "num_image_tokens", "image_seq_length", "num_queries", default=4)
    return with_runs(specs, name, (*specs[name].runs, (token, count)))


def end_of_text(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """An end of the text in every row, where a model reads its result there."""
    token = context.facts.find("eos_token_id")
    if "<eos> token" not in str(error) or not isinstance(token, int) or "input_ids" not in specs:
        return None
    if specs["input_ids"].runs:
        return None
    rest = {k: v for k, v in specs.items() if k != "decoder_input_ids"}  # they are the same text, shifted
    return with_runs(rest, "input_ids", ((token, 1),))


# --- what is missing --------------------------------------------------------------------------------------------


def _add(specs: Inputs, name: str, context: Context) -> Inputs | None:
    if name in specs or name not in context.parameters or not layouts.known(name):
        return None
    added = layouts.guesses(name, context.facts, context.parameters)[0]
    if name in layouts.AUDIO_MASKS:
        added = {name: _as_long_as_audio(added[name], specs)}
    return {**specs, **added}


def _as_long_as_audio(mask: recipe.InputSpec, specs: Inputs) -> recipe.InputSpec:
    for name, spec in specs.items():
        if layouts.MODALITIES.get(name) == "audio":
            longest = max(spec.shape[1:], key=lambda dim: recipe.size(dim, BATCH, LENGTH))
            return msgspec.structs.replace(mask, shape=(spec.shape[0], longest))
    return mask


def named_in_message(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """A parameter that the message asks for by name."""
    message = str(error)
    if not re.search(r"missing|specify|provide|required|must be|expected|need|should", message):
        return None
    for name in re.findall(r"\w+", message):
        added = _add(specs, name, context)
        if added is not None and name not in ("inputs_embeds", "decoder_inputs_embeds", "attention_mask"):
            return added
    return None


def none_in_source(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """A parameter that is None and that a line on the way of the error reads."""
    if "NoneType" not in str(error):
        return None
    for frame, line in _frames(error):
        lines = (linecache.getline(frame.f_code.co_filename, line + i) for i in range(5))  # a statement may be longer
        for name in re.findall(r"\w+", "".join(lines)):
            if frame.f_locals.get(name, 0) is None:
                added = _add(specs, name, context)
                if added is not None:
                    return added
    return None


# --- shapes -------------------------------------------------------------------------------------------------------


def channels(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    found = re.search(r"expected input\[([\d, ]+)\] to have (\d+) channels, but got (\d+) channels", str(error))
    if found is None:
        return None
    return _replace_dim(specs, int(found.group(3)), int(found.group(2)))


def image_size(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    found = re.search(r"\((\d+)\*(\d+)\) doesn't match model (?:configuration )?\((\d+)\*(\d+)\)", str(error))
    if found is None:
        return None
    have, want = [int(n) for n in found.groups()[:2]], [int(n) for n in found.groups()[2:]]
    for name in _floating(specs):
        sizes = _sizes(specs[name])
        if sizes[-2:] == have:
            return _with_dim(_with_dim(specs, name, -2, want[0]), name, -1, want[1])
    return None


def frames(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """The length of a spectrogram, or of a sequence, that a model insists on."""
    message = str(error)
    found = re.search(r"to be of length (\d+), but found (\d+)", message) or re.search(
        r"[Ee]xpected .*?length.*? (\d+).*?(?:got|found|but).*? (\d+)", message
    )
    if found is None:
        return None
    want, have = int(found.group(1)), int(found.group(2))
    return _replace_dim(specs, have, want) or _replace_dim(specs, want, have)


def multiple(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """A length that has to be a multiple of something: the next one."""
    found = re.search(r"length\D* (\d+) is not a multiple of (\d+)", str(error))
    if found is None:
        return None
    have, factor = int(found.group(1)), int(found.group(2))
    return _replace_dim(specs, have, -(-have // factor) * factor)


def last_dimension(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    message = str(error)
    found = re.search(r"shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", message)
    if found is None:
        found = re.search(r"normalized_shape=\[(?P<want>\d+)\].*input of size ?\[(?:\d+, )*(?P<have>\d+)\]", message)
        if found is None:
            return None
        return _replace_dim(specs, int(found["have"]), int(found["want"]), last_only=True)
    return _replace_dim(specs, int(found.group(1)), int(found.group(2)), last_only=True)


def elementwise(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """A size that has to be that of something the model adds or multiplies."""
    found = re.search(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", str(error))
    if found is None:
        return None
    have, want = int(found.group(1)), int(found.group(2))
    return _replace_dim(specs, have, want, last_only=True) or _replace_dim(specs, have, want)


def reshaped(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """A view of a size that is not divisible: pixels whose patches have another number of elements."""
    found = re.search(r"shape '\[([-\d, ]+)\]' is invalid for input of size (\d+)", str(error))
    if found is None:
        return None
    want = [int(n) for n in found.group(1).split(",")]
    have = int(found.group(2))
    if -1 in want:
        elements = 1
        for n in want:
            elements *= abs(n)
        for name in _floating(specs):
            sizes = _sizes(specs[name])
            if have % sizes[-1] == 0 and sizes[-1] != elements and len(sizes) == 2:
                return _with_dim(specs, name, -1, elements)
    return None


def index_range(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """Smaller ids, where some table is smaller than the vocabulary."""
    if not re.search(r"index out of range|out of bounds|must be smaller than num_classes", str(error)):
        return None
    for frame, _ in _frames(error):
        weight = frame.f_locals.get("weight")
        given = frame.f_locals.get("input")
        if _is_tensor(weight) and _is_tensor(given) and not given.is_floating_point() and weight.dim() == 2:
            for name, spec in specs.items():
                if spec.kind in ("ids", "boxes") and (spec.high or 2) > weight.shape[0] > 1:
                    low = min(spec.low or 0, weight.shape[0] // 2)
                    return {**specs, name: msgspec.structs.replace(spec, low=low, high=weight.shape[0])}
    return None


def boolean_mask(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """A mask that has to be boolean."""
    if not re.search(r"bool|Byte|BitwiseNot|bitwise", str(error)):
        return None
    for name, spec in specs.items():
        if spec.kind == "ones" and spec.dtype != "bool" and name != "attention_mask":
            return {**specs, name: msgspec.structs.replace(spec, dtype="bool")}
    return None


def drop_unknown(error: BaseException, specs: Inputs, context: Context) -> Inputs | None:
    """Without an argument that the model, or a part of it, does not take."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if found is None or found.group(1) not in specs:
        return None
    return {k: v for k, v in specs.items() if k != found.group(1)}


REPAIRS: tuple[Repair, ...] = (
    placeholders,
    idle_image,
    end_of_text,
    drop_unknown,
    named_in_message,
    none_in_source,
    channels,
    image_size,
    frames,
    multiple,
    last_dimension,
    elementwise,
    reshaped,
    index_range,
    boolean_mask,
)


def repairs(error: BaseException, specs: Inputs, context: Context) -> Iterator[Inputs]:
    """Better inputs than those that caused the error, the likeliest first; none where nothing can be learnt."""
    causes = [error, *itertools.islice(_causes(error), 2)]
    for cause in causes:
        for repair in REPAIRS:
            better = repair(cause, specs, context)
            if better is not None and better != specs:
                yield better


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (cause := error.__cause__ or error.__context__) is not None:
        yield cause
        error = cause
