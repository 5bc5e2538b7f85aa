"""Models of transformers that a user has as a config, as a saved checkpoint, or on a hub."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from conformance.cases import NotBuildable
from models.own.declarations import Entry
from models.own.faults import fault, raised
from models.zoo import architectures, packages, weights
from models.zoo import recipe as recipes
from models.zoo.architectures import TASKS
from models.zoo_subjects import RANDOM_IN_TRAINING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

AUTO: Mapping[str, str] = {"seq2seq-lm": "AutoModelForSeq2SeqLM", "speech-seq2seq": "AutoModelForSpeechSeq2Seq"}
"""Tasks whose class in `auto_map` is not called as their table is."""

FETCHED = ("*.json", "*.safetensors", "*.model", "*.txt")
ENDS_OFFLINE = ("LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "ConnectTimeout")
"""Exceptions, by name, that say that a hub cannot be reached. Libraries below huggingface_hub changed theirs."""


def place(entry: Entry) -> Path:
    """The folder, or the config's file where it is not called config.json: then no code can be beside it.

    Raises `NotBuildable` where a hub cannot be reached.
    """
    if entry.hub:
        return _fetched(entry)
    found = Path(entry.config or entry.checkpoint)
    return found.parent if found.name == "config.json" else found


def _fetched(entry: Entry) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise NotBuildable(f"{entry.where('hub')}: `hub` needs the package huggingface_hub") from None
    patterns = [*FETCHED, *(["*.py"] if entry.trust_remote_code else [])]
    try:
        found = huggingface_hub.snapshot_download(
            entry.hub, revision=entry.revision or None, allow_patterns=patterns, etag_timeout=10
        )
    except Exception as error:
        names = {kind.__name__ for each in (error, error.__cause__, error.__context__) for kind in type(each).__mro__}
        if names & set(ENDS_OFFLINE):
            why = "HF_HUB_OFFLINE is set" if _offline() else "the hub cannot be reached"
            raise NotBuildable(f"{entry.where('hub')}: {why}, and {entry.hub} is not in the cache") from error
        fault(entry, "hub", raised(error), error)
    return Path(found)


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def config_of(entry: Entry, where: Path) -> PreTrainedConfig:
    """The config. Code that comes with it is run only with `trust_remote_code`. Raises `UserFault`."""
    from transformers import AutoConfig

    packages.prepare()  # the modules of some configs import those of images
    try:
        return AutoConfig.from_pretrained(where, trust_remote_code=entry.trust_remote_code, local_files_only=True)
    except Exception as error:
        if "trust_remote_code" in str(error) and not entry.trust_remote_code:
            said = "the model has code of its own (`auto_map` in its config.json), which is run only if you say "
            fault(entry, entry.source, said + "`trust_remote_code = true`")
        fault(entry, entry.source, f"transformers cannot read the config: {raised(error)}", error)


def class_of(entry: Entry, config: PreTrainedConfig, where: Path) -> type[nn.Module]:
    """The class for the task, the model's own where it has one and may run. Raises `UserFault`."""
    own = own_class(entry, config)
    if own:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        try:
            return get_class_from_dynamic_module(own, where, local_files_only=True)
        except Exception as error:
            fault(entry, entry.source, f"its own class {own} cannot be loaded: {raised(error)}", error)
    model_type = config.model_type
    try:
        name = architectures.class_name(model_type, entry.task)
    except KeyError:
        known = architectures.architectures().get(model_type)
        has = f"it has {', '.join(known.tasks)}" if known else "transformers has no class of that type at all"
        fault(entry, "task", f"no class of {model_type!r} is for {entry.task!r}; {has}")
    try:
        return recipes.model_class(model_type, name)
    except ImportError as error:
        raise NotBuildable(f"{entry.where('task')}: {raised(error)}") from error


def own_class(entry: Entry, config: PreTrainedConfig) -> str:
    """The class for the task that `auto_map` names, where its code may run; else empty."""
    if not entry.trust_remote_code:
        return ""
    wanted = AUTO.get(entry.task) or "Auto" + TASKS[entry.task].removesuffix("_MAPPING_NAMES").replace("_", "")
    named = {name.lower(): place for name, place in (getattr(config, "auto_map", None) or {}).items()}
    return named.get(wanted.lower(), "")


def refuse_if_large(entry: Entry, cls: type[nn.Module], config: PreTrainedConfig) -> None:
    """Raises `UserFault` where the model has more parameters than the entry allows; counted without memory."""
    try:
        with torch.device("meta"):
            count = sum(p.numel() for p in cls(config).parameters())
    except Exception:  # a constructor that looks at its own values: only building it tells
        return
    refuse_above(entry, count)


def refuse_above(entry: Entry, count: int) -> None:
    """Raises `UserFault` for more parameters than the entry allows."""
    if count > entry.max_parameters:
        said = f"{entry.name} has {count:,} parameters, more than the {entry.max_parameters:,} that are allowed; "
        advice = f"say `max_parameters = {count:_}`, and give samples the memory for several copies (--memory-limit)"
        fault(entry, "max_parameters", said + advice)


def quiet(config: PreTrainedConfig) -> None:
    """Makes training repeatable: what makes it random is 0, in nested configs too."""
    for field, value in list(vars(config).items()):
        if isinstance(value, float) and RANDOM_IN_TRAINING.fullmatch(field):
            setattr(config, field, 0.0)
        elif hasattr(value, "to_dict"):
            quiet(value)


def built(entry: Entry, dtype: torch.dtype, seed: int, training: bool) -> nn.Module:
    """The model, in evaluation mode or to be trained, without dropout. Its weights are random for a config, else those
    of the checkpoint, read as safetensors or with torch.load(weights_only=True).

    Raises `UserFault` and `NotBuildable`.
    """
    where = place(entry)
    config = config_of(entry, where)
    if training:
        quiet(config)
    cls: Any = class_of(entry, config, where)
    refuse_if_large(entry, cls, config)
    if entry.config:
        try:
            with recipes.construction(dtype, seed):
                model = cls(config)
        except Exception as error:
            fault(entry, "config", f"{cls.__name__} cannot be made of it: {raised(error)}", error)
        weights.draw(model, seed)
    else:
        model = _loaded(entry, cls, config, where, dtype)
    return model.train() if training else model.eval().requires_grad_(False)


def _loaded(entry: Entry, cls: Any, config: PreTrainedConfig, folder: Path, dtype: torch.dtype) -> nn.Module:
    try:
        model, told = cls.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, weights_only=True, output_loading_info=True
        )
    except Exception as error:
        chain = (error, error.__cause__, error.__context__)
        if any(isinstance(each, pickle.UnpicklingError) or "weights_only" in str(each) for each in chain):
            said = "its weights are a pickle that holds more than tensors, and reading it could run any code; "
            fault(entry, entry.source, said + "save them as safetensors (save_pretrained does)")
        fault(entry, entry.source, f"its weights cannot be loaded: {raised(error)}", error)
    missing = sorted(told.get("missing_keys") or ())
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        said = f"the checkpoint lacks {len(missing)} weights of {cls.__name__} ({shown}); is {entry.task!r} its task?"
        fault(entry, entry.source, said)
    return model
