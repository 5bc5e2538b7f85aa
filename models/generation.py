"""How a model writes token by token: found by asking it which call gets which inputs, and which caches it takes."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conformance.callables import on_device
from conformance.cases import NotBuildable
from models import drives
from models.subjects import Sizes

ENCODER_DECODER = frozenset({"encoder_outputs", "decoder_input_ids"})
"""What the forward of an encoder-decoder takes."""

OFF, SHORT_OFF = 0.05, 0.2
"""How far logits of steps may be off those of one forward on the CPU, in standard deviations of the logits: of the
architectures of transformers 5.24 whose calls are put together here, all are below 0.003 or above 0.2 in float32. The
second is for 16 bits."""


@dataclass(frozen=True)
class Writing:
    """What a model is given to write."""

    calls: drives.Calls
    inputs: dict[str, Any]  # of `drives.decode`
    prompt: int  # tokens of the prefill
    whole: dict[str, Any]  # of one forward over the same tokens; empty where the model is given nothing but tokens

    @property
    def encodes(self) -> bool:
        """Whether an encoder is called first."""
        return bool(self.calls.encoder)

    @property
    def length(self) -> int:
        """All tokens that it is given."""
        return int(self.inputs[self.calls.tokens].shape[1])


def asked(module: Any, inputs: Callable[[int], Mapping[str, Any]], sizes: Sizes) -> Writing:
    """How `module` writes. `inputs(length)` are keyword arguments of a forward.

    An encoder-decoder encodes once and its decoder is given tokens; what else takes images or sound beside its tokens
    is given them in the prefill alone, as `generate` does. Raises `NotBuildable` where the model cannot be called so.
    """
    if set(inspect.signature(module.forward).parameters) >= ENCODER_DECODER:
        return _with_encoder(module, inputs(sizes.length), inputs(sizes.prompt + sizes.steps), sizes)
    return _alone(inputs(sizes.prompt), inputs(sizes.prompt + sizes.steps), sizes)


def _alone(short: Mapping[str, Any], long: Mapping[str, Any], sizes: Sizes) -> Writing:
    tokens = _tokens(long, "input_ids", sizes)
    first = {name: value for name, value in short.items() if name != "input_ids"}
    if set(first) <= {"attention_mask"}:  # of ones, which says nothing
        return Writing(drives.TOKENS_ALONE, {"input_ids": tokens}, sizes.prompt, {})
    prompt = short["input_ids"]  # the places of images are in it, and come on top of its length
    tokens = torch.cat([prompt, tokens[:, prompt.shape[1] :]], 1)
    calls = drives.Calls(prefill=tuple(first))
    return Writing(calls, {"input_ids": tokens, **first}, prompt.shape[1], {**long, "input_ids": tokens})


def _with_encoder(module: Any, first: Mapping[str, Any], long: Mapping[str, Any], sizes: Sizes) -> Writing:
    tokens = _tokens(long, "decoder_input_ids", sizes).clone()
    start = start_token(module)
    if start is not None:
        tokens[:, 0] = start
    path = encoder_path(module)
    encoder = module.get_submodule(path)
    others = {name: value for name, value in first.items() if not name.startswith("decoder_")}
    parameters = inspect.signature(encoder.forward).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    taken = tuple(name for name in others if anything or name in parameters)
    if not path or not taken:
        raise NotBuildable("it does not say which part of it is the encoder, or that takes none of its inputs")
    main = getattr(encoder, "main_input_name", "input_ids")
    rest = tuple(name for name in others if name != main)
    calls = drives.Calls("decoder_input_ids", encoder=taken, prefill=rest, steps=rest)
    every = {**others, "decoder_input_ids": tokens}
    return Writing(calls, every, sizes.prompt, every)


def _tokens(inputs: Mapping[str, Any], name: str, sizes: Sizes) -> Tensor:
    tokens = inputs.get(name)
    if not isinstance(tokens, Tensor):
        raise NotBuildable(f"it does not decode token by token: its inputs have no {name}")
    if tokens.dim() != 2:
        raise NotBuildable(f"what it writes is not one row of tokens: {name} has {tokens.dim()} dimensions")
    if tokens.shape[1] < sizes.prompt + sizes.steps:
        raise NotBuildable(f"its {name} are {tokens.shape[1]} always, fewer than prompt and steps")
    return tokens


def start_token(module: Any) -> int | None:
    """What `generate` would let a decoder begin with; None where the model does not say."""
    holders = [getattr(module, name, None) for name in ("generation_config", "config")]
    found = (getattr(holder, name, None) for name in ("decoder_start_token_id", "bos_token_id") for holder in holders)
    return next((token for token in found if isinstance(token, int)), None)


def encoder_path(module: Any) -> str:
    """Where the encoder is in an encoder-decoder; empty where the model does not say."""
    encoder = module.get_encoder() if hasattr(module, "get_encoder") else module
    return next((path for path, part in module.named_modules() if part is encoder), "")


def encoding(model: Any) -> Any:
    """An encoder-decoder that only encodes where it is called without `encoder_outputs`, so that what is compiled of it
    is compiled of its encoder too. It has the modules of `model`, and its class but for that."""
    cls, path = type(model), encoder_path(model).split(".")

    def forward(self: Any, **inputs: Any) -> Any:
        if "encoder_outputs" in inputs:
            return cls.forward(self, **inputs)
        encoder = self
        for name in path:
            encoder = getattr(encoder, name)
        return encoder(**inputs)

    made = copy.copy(model)
    made.__class__ = type(cls.__name__, (cls,), {"forward": forward, "__module__": cls.__module__})
    return made


# --- caches -----------------------------------------------------------------------------------------------------------


def static_cache(module: Any, writing: Writing, free: int) -> Callable[[Any], Any]:
    """Makes empty caches that hold `free` tokens more than it is given, given what the encoder returned.

    As `generate` with `cache_implementation="static"` does: that of cross-attention is as long as what is encoded.
    Raises `NotBuildable` where the model takes none.
    """
    from transformers import EncoderDecoderCache, StaticCache

    if getattr(module, "_is_stateful", False):
        raise NotBuildable("the model makes its own cache, of a kind that has no fixed size")
    if not hasattr(module, "config"):
        raise NotBuildable("the model has no config, which says how large a cache of fixed size is")
    config = module.config.get_text_config(decoder=True)
    length = writing.length + free

    def alone(encoded: Any) -> Any:
        return StaticCache(config=config, max_cache_len=length)

    def crossed(encoded: Any) -> Any:
        across = StaticCache(config=_without_windows(config), max_cache_len=encoded[0].shape[1])
        return EncoderDecoderCache(alone(encoded), across)

    return crossed if writing.encodes else alone


def _without_windows(config: Any) -> Any:
    """For cross-attention, which sees all that is encoded also where self-attention has a window."""
    made = copy.deepcopy(config)
    if getattr(made, "sliding_window", None) is not None:
        made.sliding_window = None
    if getattr(made, "layer_types", None):
        made.layer_types = ["full_attention"] * len(made.layer_types)
    return made


def require_reference(module: nn.Module, writing: Writing, drive: Callable[..., Any]) -> None:
    """Raises `NotBuildable` where the CPU itself, driven by `drive`, does not decode: it raises, or it does not get
    from step to step what one forward over the same tokens gives.

    The latter only where calls are put together here, of an encoder and a decoder, or of a prefill that alone sees the
    images: then the model cannot be called so, or not with such a cache. Called plainly a model is what it is.
    """
    fn = encoding(module) if writing.encodes else module
    try:
        made = drive(on_device(fn), **writing.inputs)  # a copy: some models keep what they saw last
        if not writing.whole:
            return
        with torch.no_grad():
            expected = on_device(module)(**writing.whole)["logits"].double()
        off = (torch.cat([made["prefill"], made["steps"]], 1).double() - expected).abs().max() / expected.std()
    except Exception as error:  # whatever a model raises
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise NotBuildable(f"it does not decode with this cache on the CPU either: {said}") from error
    if not off <= (OFF if next(module.parameters()).dtype.itemsize > 2 else SHORT_OFF):
        raise NotBuildable(
            f"step by step with this cache the CPU itself gets other logits than in one forward, by {off:.2g} standard "
            "deviations: it is no reference"
        )
