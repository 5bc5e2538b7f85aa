"""From a model type and a task to a recipe: shrinks the config, guesses inputs, runs, learns from errors."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import itertools
import json
import re
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from models.zoo import architectures, exceptions, layouts, repair, rules, shrinking, trial
from models.zoo import recipe as recipes
from models.zoo.exceptions import Entry
from models.zoo.facts import Facts
from models.zoo.layouts import Inputs
from models.zoo.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

MAX_PARAMETERS = 45_000_000
"""No model is built that has more: counted on the meta device first, so that a rule which misses costs no memory."""

SECONDS = 20.0
"""How much processor time the search for one recipe may take: on a busy machine it takes longer, and finds the same."""

_PACKAGE = re.compile(r"requires the (\S+) library|requires (\w+)$|No module named '([\w.]+)'|`?(\w+)`? is required")

MAX_TRIALS = 12
"""Repairs in a row."""


class NotDerivable(Exception):
    """No tiny model was found. The message is the reason: a package that is missing, or the first error."""


@dataclass(frozen=True)
class Subject:
    """What a recipe is searched for."""

    model_type: str
    task: str
    class_name: str
    cls: type[nn.Module]
    parameters: Mapping[str, bool]  # of its forward: whether each is required
    main: tuple[str, ...]
    entry: Entry


def derive(model_type: str, task: str) -> Recipe:
    """The recipe of a tiny model that ran twice with the same finite results, at two batch sizes and two lengths where
    it has them. Raises NotDerivable, and KeyError where transformers has no such class."""
    name = architectures.class_name(model_type, task)
    entry = exceptions.entry(model_type, task)
    if entry.unsupported:
        raise NotDerivable(entry.unsupported)
    for package in entry.requires:
        if importlib.util.find_spec(package) is None:
            raise NotDerivable(f"needs the package {package}")
    with _quiet():
        subject = _subject(model_type, task, name, entry)
        return _search(subject)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of thousands of odd configs."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logging.set_verbosity(before)


def reason(error: BaseException) -> str:
    """One line that says what went wrong."""
    text = " ".join(str(error).split())
    missing = _PACKAGE.search(text)
    if isinstance(error, ImportError) and missing:
        return f"needs the package {next(filter(None, missing.groups()))}"
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _subject(model_type: str, task: str, name: str, entry: Entry) -> Subject:
    try:
        cls = recipes.model_class(model_type, name)
    except Exception as error:
        raise NotDerivable(reason(error)) from error
    parameters = _forward_parameters(cls)
    main = getattr(cls, "main_input_name", None) or ()
    return Subject(model_type, task, name, cls, parameters, (main,) if isinstance(main, str) else tuple(main), entry)


def _forward_parameters(cls: type[nn.Module]) -> dict[str, bool]:
    """The parameters of a forward, and whether each is required."""
    signature = inspect.signature(cls.forward)
    return {
        p.name: p.default is p.empty
        for p in itertools.islice(signature.parameters.values(), 1, None)
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    }


def _default_config(subject: Subject) -> Any:
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[subject.model_type](**subject.entry.base)


def _merged(changes: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` with `over` on top, nested."""
    result = dict(changes)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else value
    return result


def _configs(subject: Subject) -> Iterator[dict[str, Any]]:
    """Keyword arguments of tiny configs, the smallest first."""
    try:
        default = _default_config(subject)
    except Exception as error:
        if not subject.entry.config:
            raise NotDerivable(f"the default config cannot be made: {reason(error)}") from error
        yield dict(subject.entry.config)
        return
    seen: set[str] = set()
    for rung in rules.rules().rung:
        changes = shrinking.shrink(default, rung, frozenset(subject.entry.keep))
        changes = _merged(_merged(subject.entry.base, changes), subject.entry.config)
        key = json.dumps(changes, sort_keys=True, default=str)
        if key not in seen:
            seen.add(key)
            yield changes


def _parameters(recipe: Recipe, cls: type[nn.Module]) -> int:
    """How many parameters the model would have; 0 where it cannot be made without memory."""
    import torch

    try:
        with torch.device("meta"):
            model = cls(recipes.fitting(recipes.config(recipe), cls))
    except Exception:
        return 0
    return sum(p.numel() for p in model.parameters())


def _cache_argument(subject: Subject) -> str | None:
    """The name of the cache, where the model is one that decodes token by token."""
    generates = subject.task in ("causal-lm", "seq2seq-lm", "image-text-to-text", "multimodal-lm", "speech-seq2seq")
    if not (generates or hasattr(subject.cls, "prepare_inputs_for_generation")):
        return None
    return next((n for n in ("past_key_values", "cache", "cache_params") if n in subject.parameters), None)


def _search(subject: Subject) -> Recipe:
    deadline = time.process_time() + SECONDS
    first: BaseException | None = None
    partial: Recipe | None = None
    for changes in _configs(subject):
        blank = Recipe(
            model_type=subject.model_type,
            task=subject.task,
            class_name=subject.class_name,
            config=changes,
            inputs={},
            cache_argument=_cache_argument(subject),
            builder=subject.entry.builder,
        )
        try:
            if not blank.builder and _parameters(blank, subject.cls) > MAX_PARAMETERS:
                raise trial.Rejected(f"more than {MAX_PARAMETERS // 1_000_000} million parameters")
            model = recipes.build(blank)
        except Exception as error:  # whatever a constructor raises: the next rung may do
            first = first or error
            continue
        found = _with_inputs(subject, model, blank, deadline)
        if isinstance(found, Recipe):
            if not found.left_out:
                return found
            partial = partial or found
        else:
            first = first or found
        if time.process_time() > deadline:
            break
    if partial is not None:
        return partial
    raise NotDerivable(reason(first) if first else "no config to try") from first


def _with_inputs(subject: Subject, model: nn.Module, blank: Recipe, deadline: float) -> Recipe | BaseException:
    """The recipe with inputs that run, or the first error."""
    if blank.builder:  # what is run is not the class
        main = getattr(model, "main_input_name", None) or ()
        subject = dataclasses.replace(
            subject,
            parameters=_forward_parameters(type(model)),
            main=(main,) if isinstance(main, str) else tuple(main),
        )
    facts = Facts(getattr(model, "config", None) or recipes.config(blank))
    context = repair.Context(facts, subject.parameters)
    first: BaseException | None = None
    deaf: tuple[Recipe, tuple[str, ...]] | None = None
    seen: set[str] = set()
    for start in _starts(subject, facts):
        specs: Inputs | None = start
        waiting: list[Inputs] = []
        for _ in range(MAX_TRIALS):
            if specs is None or time.process_time() > deadline:
                break
            seen.add(str(specs))
            recipe = msgspec.structs.replace(blank, inputs=specs)
            try:
                recipe = trial.settle(model, recipe, subject.entry.idle)
            except Exception as error:
                first = first or error
                if isinstance(error, trial.Idle) and deaf is None:
                    deaf = recipe, error.inputs
                waiting = [s for s in repair.repairs(error, specs, context)] + waiting
                specs = next((s for s in waiting if str(s) not in seen), None)
                continue
            return _described(recipe, subject)
    if deaf is not None:  # better than nothing: it runs, and says which inputs it ignores
        recipe, ignored = deaf
        with contextlib.suppress(Exception):
            return _described(trial.settle(model, recipe, ignored), subject)
    return first or trial.Rejected("no inputs to try")


def _starts(subject: Subject, facts: Facts) -> Iterator[Inputs]:
    """Inputs to begin with."""
    fixed = subject.entry.specs
    encoder_decoder = bool(getattr(facts.config, "is_encoder_decoder", False))
    names = layouts.wanted(subject.parameters, subject.main, encoder_decoder=encoder_decoder)
    names = [n for n in names if n not in fixed and n not in subject.entry.drop]
    if subject.entry.only:
        names = [n for n in names if n in subject.entry.only]
    along = [n for n in layouts.companions(names, subject.parameters) if n not in fixed and n not in subject.entry.drop]
    if "pixel_values" not in names:
        along = [n for n in along if n not in ("mm_token_type_ids", "token_type_ids")]
    for extra in [along, []] if along else [[]]:
        for specs in itertools.islice(layouts.combinations([*names, *extra], facts, subject.parameters), 12):
            yield {**layouts.for_task(specs, subject.task), **fixed}


_TAKEN = ("input_ids", "pixel_values", "input_features", "input_values")
"""Parameters that say that a model takes a modality."""


def _described(recipe: Recipe, subject: Subject) -> Recipe:
    """With the modalities that the inputs have, and those that they lack."""
    have = _modalities(recipe.inputs)
    takes = _modalities(
        n for n in subject.parameters if n in ("input_ids", "pixel_values", "input_features", "input_values")
    )
    dropped = _modalities(subject.entry.drop)
    ignored = _modalities(n for n in recipe.idle if n not in subject.entry.idle)
    left_out = tuple(m for m in takes if m not in have and m not in dropped and "features" not in have)
    left_out += tuple(m for m in ignored if m not in left_out)
    return msgspec.structs.replace(recipe, modalities=have, left_out=left_out)


def _modalities(names: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(layouts.MODALITIES[n] for n in names if n in layouts.MODALITIES))
