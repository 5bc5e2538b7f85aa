"""What a tiny model is made of, as data; and the model and its inputs, made of it."""

from __future__ import annotations

import contextlib
import copy
import importlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from models.zoo import packages, weights

if TYPE_CHECKING:
    import torch
    from torch import nn

Dim = int | str
"""A size: a number, or `batch`, `length` or `A*length+B` (either part may lack)."""

_DIM = re.compile(r"(?:(\d+)\*)?(batch|length)(?:\+(\d+))?")


class InputSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one keyword argument is made."""

    kind: Literal["ids", "floats", "ones", "zeros", "bools", "arange", "boxes", "constant", "builder"]
    shape: tuple[Dim, ...] = ()
    dtype: str = "int64"  # `float` is the dtype of the model
    low: float | None = None  # ids: [low, high); floats: uniform between them, standard normal without
    high: float | None = None
    runs: tuple[tuple[int, int], ...] = ()  # ids: (token, how often), at the start of every row: placeholders of images
    value: Any = None  # constant: as it is, or, where there is a shape, the elements, expanded to it
    builder: str | None = None  # a function of builders.py
    seed: int = 0  # added to the seed of the call


class Recipe(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tiny model of one architecture and task, and its inputs."""

    model_type: str
    task: str
    class_name: str
    config: dict[str, Any]  # what differs from the class's default; nested configs are dicts
    inputs: dict[str, InputSpec]
    modalities: tuple[str, ...] = ()  # text, image, video, audio, series, features (a part that is fed hidden states)
    left_out: tuple[str, ...] = ()  # modalities that the model takes and these inputs lack
    parameters: int = 0
    lengths: bool = False  # whether some input varies with `length`
    length_multiple: int = 1  # lengths that the model takes are multiples of it
    batched: bool = True  # whether some input varies with `batch`
    cache_argument: str | None = None  # past_key_values or cache, where the model decodes token by token
    idle: tuple[str, ...] = ()  # inputs of which the outputs do not depend
    finite: bool = True  # whether all outputs are finite (some models mask their outputs with -inf by design)
    ties: str = ""  # the first op, and its module, whose choice among equal numbers the outputs depend on
    builder: str | None = None  # a function of builders.py that makes the model, where calling the class is not enough


def size(dim: Dim, batch: int, length: int) -> int:
    """The number that a dimension stands for. Raises ValueError where it is not of the form above."""
    if isinstance(dim, int):
        return dim
    found = _DIM.fullmatch(dim)
    if found is None:
        raise ValueError(f"a dimension is a number, batch, length or A*length+B, not {dim!r}")
    factor, name, offset = found.groups()
    return int(factor or 1) * (batch if name == "batch" else length) + int(offset or 0)


def config(recipe: Recipe) -> Any:
    """The transformers config of a recipe."""
    packages.prepare()  # the modules of some configs import those of images
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[recipe.model_type](**copy.deepcopy(recipe.config))


def fitting(config: Any, cls: type[nn.Module]) -> Any:
    """The config itself, or the part of it that a class is of: the text model of a composite takes the text config."""
    from transformers import PreTrainedConfig

    expected = getattr(cls, "config_class", None)
    waiting = [config]
    for candidate in waiting:  # grows while it is walked
        if expected is None or isinstance(candidate, expected):
            return candidate
        waiting += [value for value in vars(candidate).values() if isinstance(value, PreTrainedConfig)]
    return config


def model_class(model_type: str, class_name: str) -> type[nn.Module]:
    """A class of transformers, also where its top level does not export it. Raises ImportError for a missing package
    and AttributeError where there is no such class."""
    import transformers
    from transformers import CONFIG_MAPPING

    packages.prepare()
    try:
        found = getattr(transformers, class_name)
    except AttributeError:
        modelling = CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_")
        found = getattr(importlib.import_module(modelling), class_name)
    backends = getattr(found, "_backends", None)
    if backends and not hasattr(found, "forward"):
        raise ImportError(f"{class_name} requires {', '.join(backends)}")
    return found


@contextlib.contextmanager
def construction(dtype: torch.dtype, seed: int) -> Iterator[None]:
    """Default dtype and seed for a constructor, restored afterwards. Memory that it leaves uninitialised reads NaN, so
    that it can be told from what was set, and does not differ from one construction to the next."""
    import torch

    before = torch.get_default_dtype()
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def build(recipe: Recipe, *, dtype: torch.dtype | None = None, seed: int = 0) -> nn.Module:
    """The model in evaluation mode, its parameters in `dtype` (float32 unless given), the same for the same seed.

    Buffers that transformers computes in float32 whatever the dtype, such as rotary frequencies, stay float32.
    Raises what the import or the constructor raises.
    """
    import torch

    from models.zoo import builders

    dtype = dtype or torch.float32
    with construction(dtype, seed):
        if recipe.builder:
            model = builders.model(recipe.builder)(recipe)
        else:
            cls = model_class(recipe.model_type, recipe.class_name)
            model = cls(fitting(config(recipe), cls))
    weights.draw(model, seed)
    return model.eval()


def _make(spec: InputSpec, batch: int, length: int, generator: torch.Generator, floating: torch.dtype) -> Any:
    import torch

    shape = tuple(size(dim, batch, length) for dim in spec.shape)
    dtype = floating if spec.dtype == "float" else getattr(torch, spec.dtype)
    match spec.kind:
        case "ids":
            low, high = int(spec.low or 0), int(spec.high or 2)
            rows = torch.randint(low, high, shape, generator=generator, dtype=dtype)
            at = 0
            for token, count in spec.runs:
                rows[..., at : at + count] = token
                at += count
            return rows
        case "floats":
            if spec.low is None or spec.high is None:
                return torch.randn(shape, generator=generator).to(dtype)
            return (spec.low + (spec.high - spec.low) * torch.rand(shape, generator=generator)).to(dtype)
        case "ones":
            return torch.ones(shape, dtype=dtype)
        case "zeros":
            return torch.zeros(shape, dtype=dtype)
        case "bools":
            return torch.rand(shape, generator=generator) < 0.5
        case "arange":
            return torch.arange(shape[-1], dtype=dtype).expand(shape).contiguous()
        case "boxes":  # x0 <= x1, y0 <= y1, as layout models want them
            corners = torch.rand((*shape[:-1], 2, 2), generator=generator).sort(dim=-2).values.flatten(-2)
            scaled = corners * (1 if spec.high is None else spec.high - 1)
            return scaled.to(dtype)
        case "constant":
            value = copy.deepcopy(spec.value)
            return torch.tensor(value, dtype=dtype).expand(shape).contiguous() if spec.shape else value
    raise ValueError(f"no such kind of input: {spec.kind!r}")


def inputs(
    recipe: Recipe, *, batch: int = 2, length: int = 16, seed: int = 0, dtype: torch.dtype | None = None
) -> dict[str, Any]:
    """Keyword arguments for the model, the same for the same seed; float tensors in `dtype` (float32 unless given).

    `length` counts the tokens (or frames, or samples) that vary; placeholders of images come on top. It is ignored
    where the recipe has no lengths.
    """
    import torch

    from models.zoo import builders

    floating = dtype or torch.float32
    made: dict[str, Any] = {}
    for number, (name, spec) in enumerate(recipe.inputs.items()):
        generator = torch.Generator().manual_seed(seed * 1009 + number * 101 + spec.seed)
        if spec.kind == "builder":
            made[name] = builders.argument(str(spec.builder))(recipe, batch, length, generator, floating)
        else:
            made[name] = _make(spec, batch, length, generator, floating)
    return made


def dims(specs: Mapping[str, InputSpec]) -> set[str]:
    """`batch` and `length`, those of them that the inputs vary with."""
    text = " ".join(str(dim) for spec in specs.values() for dim in spec.shape if isinstance(dim, str))
    return {name for name in ("batch", "length") if name in text}
