"""Guesses of inputs: from the names of a model's parameters and its config, the likeliest first.

A guess need not be right: trial.py runs it, and repair.py learns from the error. What a name means is in `_LAYOUTS`; a
name that is not there has no guess, and a model that requires it needs an entry in exceptions.toml.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import msgspec

from models.zoo import recipe
from models.zoo.facts import Facts
from models.zoo.recipe import InputSpec

Inputs = dict[str, InputSpec]
Layouts = Callable[[Facts], list[Inputs]]


def floats(*shape: int | str) -> InputSpec:
    return InputSpec("floats", shape, "float")


def ones(*shape: int | str, dtype: str = "int64") -> InputSpec:
    return InputSpec("ones", shape, dtype)


def constant(value: list[Any], *shape: int | str) -> InputSpec:
    """The same elements in every row of a batch."""
    return InputSpec("constant", shape, "int64", value=value)


def _ids(vocab_fields: tuple[str, ...] = ()) -> Layouts:
    def layouts(facts: Facts) -> list[Inputs]:
        vocab = facts.number(*vocab_fields, default=facts.vocab) if vocab_fields else facts.vocab
        low, high = facts.free_ids(vocab)
        return [{"": InputSpec("ids", ("batch", "length"), low=low, high=high)}]

    return layouts


def _grid(facts: Facts, part: str) -> tuple[int, int]:
    """(patches, elements of a patch) of an image of four by four patches that is fed as a list of patches."""
    channels, patch = facts.image(part)[0], facts.patch(part)
    return 16, channels * patch * patch * facts.number("temporal_patch_size", part=part, default=1)


def _images(name: str, grid: str, part: str) -> Layouts:
    def layouts(facts: Facts) -> list[Inputs]:
        c, h, w = facts.image(part)
        patches, elements = _grid(facts, part)
        frames = facts.number("num_frames", "frames_per_clip", "num_video_frames", part=part, default=2)
        plane = {name: floats("batch", c, h, w)}
        packed = {name: floats(f"{patches}*batch", elements), grid: constant([1, 4, 4], "batch", 3)}
        lone = {name: packed[name], "grid_thw": packed[grid]}  # what a tower calls it
        clip = {name: floats("batch", frames, c, h, w)}
        p = facts.patch(part)
        every = f"{patches}*batch"
        cut = [
            {name: floats(*shape, p, p), key: packed[grid]}
            for shape in ((every, c), (1, every, c))
            for key in (grid, "grid_thw")
        ]
        flat = {name: packed[name], "image_grid_hw": constant([4, 4], "batch", 2)}
        sizes = constant([h, 2 * w], "batch", 2)
        tiled = {name: floats("batch", 3, c, h, w), "image_sizes": sizes}  # the whole, and two tiles of it
        packing = {name: floats(1, c, p, f"{16 * p}*batch"), "target_sizes": constant([4, 4], "batch", 2)}
        places = constant([[i % 4, i // 4] for i in range(patches)], "batch", patches, 2)
        placed = [
            {name: floats("batch", patches, elements), f"{kind}_position_ids": places} for kind in ("image", "pixel")
        ]
        special = [tiled] if facts.find("image_grid_pinpoints") else [packed, lone, *placed, *cut, flat, packing]
        tiles = [
            {name: packed[name]},
            {name: floats("batch", 1, c, h, w)},
            {name: floats("batch", 2, c, h, w)},
            {name: floats("batch", c, frames, h, w)},
            {name: floats("batch", patches, elements)},
            {name: floats("batch", 1, patches, elements)},
            {name: floats("batch", 1, 1, c, h, w)},
            {name: floats("batch", 1, 4, c, h, w)},
            {name: floats("batch", c, 2 * h, 2 * w)},
        ]
        return [clip, plane, *special, *tiles] if part == "video" else [plane, *special, *tiles, clip]

    return layouts


_MEL = (
    *("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "mel_bins", "input_dim", "input_feat_size"),
    *("num_mel_channels", "input_size", "model_in_dim", "spectrogram_bins"),
)
"""What the height of a spectrogram is called."""


def _spectrogram(name: str) -> Layouts:
    def layouts(facts: Facts) -> list[Inputs]:
        mel = facts.number(*_MEL, part="audio", default=16)
        fixed = facts.number("max_length", "max_source_positions", part="audio", default=0)
        frames: list[int | str] = ["8*length", "length", *([2 * fixed] if fixed else []), 64]
        shapes = [shape for t in frames for shape in ((("batch", mel, t)), ("batch", t, mel))]
        return [{name: floats(*shape)} for shape in shapes] + [
            {name: floats("batch", 1, mel, 64)},
            {name: floats("batch", 1, 64, mel)},
        ]

    return layouts


def _waveform(name: str) -> Layouts:
    def layouts(facts: Facts) -> list[Inputs]:
        samples: list[tuple[int | str, ...]] = [
            ("batch", "320*length+400"),
            ("batch", 1, "320*length"),
            ("batch", 1, "1920*length"),
            ("batch", "1920*length"),
            ("batch", 16000),
        ]
        return [{name: floats(*shape)} for shape in samples] + _spectrogram(name)(facts)

    return layouts


def _hidden(facts: Facts) -> list[Inputs]:
    width = facts.number("hidden_size", "d_model", "embed_dim", default=64)
    _, elements = _grid(facts, "image")
    return [{"": floats("batch", "length", width)}, {"": floats("16*batch", elements)}, {"": floats("16*batch", width)}]


def _boxes(facts: Facts) -> list[Inputs]:
    limit = facts.number("max_2d_position_embeddings", default=1024)
    return [{"": InputSpec("boxes", ("batch", "length", 4), "int64", high=min(limit, 1024))}]


def _series(facts: Facts) -> list[Inputs]:
    lags = facts.find("lags_sequence", default=[0]) or [0]
    context = facts.number("context_length", default=32)
    columns = facts.number("num_input_channels", "input_size", default=1)
    past = context + (max(lags) if facts.find("lags_sequence") else 0)
    return [{"": floats("batch", past)}, {"": floats("batch", past, columns)}, {"": floats("batch", context)}]


def _time_features(length: str) -> Layouts:
    def layouts(facts: Facts) -> list[Inputs]:
        count = facts.number("num_time_features", default=1)
        if length == "future":
            return [{"": floats("batch", facts.number("prediction_length", default=1), count)}]
        lags = facts.find("lags_sequence", default=[0]) or [0]
        return [{"": floats("batch", facts.number("context_length", default=32) + max(lags), count)}]

    return layouts


def _like_text(kind: Any, *rest: int | str, dtype: str = "int64") -> Layouts:
    return lambda facts: [{"": InputSpec(kind, ("batch", "length", *rest), dtype)}]


def _fixed(*specs: InputSpec) -> Layouts:
    return lambda facts: [{"": spec} for spec in specs]


def _width(*names: str, rows: int | str = "length") -> Layouts:
    return lambda facts: [{"": floats("batch", rows, facts.number(*names, "hidden_size", "d_model", default=64))}]


_LAYOUTS: Mapping[str, Layouts] = {
    "input_ids": _ids(),
    "decoder_input_ids": _ids(),
    "text_input_ids": _ids(),
    "char_input_ids": _ids(),
    "qformer_input_ids": _ids(),
    "pixel_values": _images("pixel_values", "image_grid_thw", "image"),
    "pixel_values_videos": _images("pixel_values_videos", "video_grid_thw", "video"),
    "pixel_values_images": _images("pixel_values_images", "image_grid_thw", "image"),
    "flattened_patches": lambda f: [
        # the first two elements of a patch are its row and column
        {"": InputSpec("floats", ("batch", "length", 2 + f.image()[0] * f.patch() ** 2), "float", low=0, high=4)}
    ],
    "input_features": _spectrogram("input_features"),
    "audio_input_features": _spectrogram("audio_input_features"),
    "audio_mel": _spectrogram("audio_mel"),
    "input_values": _waveform("input_values"),
    "audio_values": _waveform("audio_values"),
    "spectrogram": _spectrogram("spectrogram"),
    "hidden_states": _hidden,
    "inputs_embeds": _width(),
    "encoder_hidden_states": _width("encoder_hidden_size", "cross_attention_hidden_size"),
    "query_embeds": _width(rows=8),
    "latents": _width(rows=8),
    "grid_thw": _fixed(constant([1, 4, 4], "batch", 3)),
    "merge_sizes": _fixed(constant([1], "batch")),
    "image_merge_sizes": _fixed(constant([1], "batch")),
    "image_grid_thw": _fixed(constant([1, 4, 4], "batch", 3)),
    "spatial_shapes": _fixed(constant([4, 4], "batch", 2)),
    "pixel_attention_mask": lambda f: [
        {"": ones("batch", 16)},
        {"": ones("batch", *f.image()[1:])},
        {"": ones("batch", 1, *f.image()[1:])},
    ],
    "image_sizes": lambda f: [{"": constant(list(f.image()[1:]), "batch", 2)}],
    "target_sizes": _fixed(constant([4, 4], "batch", 2)),
    "aspect_ratio_ids": _fixed(InputSpec("ones", ("batch", 1))),
    "aspect_ratio_mask": lambda f: [{"": ones("batch", 1, f.number("max_num_tiles", default=4))}],
    "bbox": _boxes,
    "attention_mask": _like_text("ones"),
    "decoder_attention_mask": _like_text("ones"),
    "token_type_ids": _like_text("zeros"),
    "mm_token_type_ids": _like_text("zeros"),
    "position_ids": _like_text("arange"),
    "input_features_mask": _like_text("ones"),
    "feature_attention_mask": _like_text("ones"),
    "audio_mel_mask": _like_text("zeros", dtype="bool"),  # true where there is padding
    "input_values_mask": _like_text("ones", dtype="bool"),
    "padding_mask": _like_text("ones", dtype="bool"),
    "past_values": _series,
    "past_time_features": _time_features("past"),
    "future_time_features": _time_features("future"),
    "past_observed_mask": lambda f: [{"": ones(*_series(f)[0][""].shape)}],
    "bool_masked_pos": lambda f: [{"": InputSpec("bools", ("batch", 16), "bool")}],
}

AUDIO_MASKS = ("input_features_mask", "feature_attention_mask", "padding_mask", "audio_mel_mask", "input_values_mask")
"""Which frames or samples are no padding."""

COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "input_ids": ("attention_mask",),
    "pixel_values": ("mm_token_type_ids", "token_type_ids"),
    "past_values": ("past_observed_mask", "future_time_features"),
}
"""What a processor or tokenizer gives along with an input: passed where the model takes it."""

MODALITIES: Mapping[str, str] = {
    "input_ids": "text",
    "decoder_input_ids": "text",
    "bbox": "text",
    "pixel_values": "image",
    "pixel_values_images": "image",
    "flattened_patches": "image",
    "pixel_values_videos": "video",
    "input_features": "audio",
    "audio_input_features": "audio",
    "audio_input_ids": "audio",
    "audio_mel": "audio",
    "input_values": "audio",
    "audio_values": "audio",
    "spectrogram": "audio",
    "past_values": "series",
    "hidden_states": "features",
    "inputs_embeds": "features",
    "encoder_hidden_states": "features",
    "latents": "features",
}
"""What modality an input is of."""


def known(name: str) -> bool:
    """Whether there is a guess for a parameter of this name."""
    return name in _LAYOUTS


def guesses(name: str, facts: Facts, parameters: Container[str]) -> list[Inputs]:
    """Layouts of one parameter, with what must come along, the likeliest first. KeyError where there is none.

    Layouts with arguments that the model does not take are left out; those with the most that it takes come first.
    """
    named = [{key or name: spec for key, spec in layout.items()} for layout in _LAYOUTS[name](facts)]
    return sorted((layout for layout in named if all(key in parameters for key in layout)), key=len, reverse=True)


def wanted(parameters: Mapping[str, bool], main: tuple[str, ...], *, encoder_decoder: bool) -> list[str]:
    """Which parameters to pass, given whether each is required: what is required, and one of each modality."""
    names = [name for name, required in parameters.items() if required]
    names += [name for name in main if name in parameters and name not in names]
    have = {MODALITIES[name] for name in names if name in MODALITIES}
    for name in ("input_ids", "pixel_values", "input_features", "input_values", "bbox", "pixel_values_videos"):
        if name not in parameters or name in names:
            continue
        modality = "image" if name == "pixel_values_videos" and "pixel_values" in names else MODALITIES[name]
        if modality not in have or name == "bbox":
            names.append(name)
            have.add(modality)
    if encoder_decoder and "decoder_input_ids" in parameters and "decoder_input_ids" not in names:
        names.append("decoder_input_ids")
    return names


def companions(names: list[str], parameters: Mapping[str, bool]) -> list[str]:
    """What comes along with the named inputs and the model takes."""
    return [c for name in names for c in COMPANIONS.get(name, ()) if c in parameters and c not in names]


def _of_fixed_length(spec: InputSpec) -> InputSpec:
    dims = (recipe.size(dim, 0, 16) if isinstance(dim, str) and "length" in dim else dim for dim in spec.shape)
    return msgspec.structs.replace(spec, shape=tuple(dims))


CHOICES = 4
"""Answers to choose from in a multiple-choice task."""


def for_task(specs: Inputs, task: str) -> Inputs:
    """Inputs as a task wants them: choices come as one more dimension of the text.

    There are as many as the batches of no sample: a compiler that takes equal sizes for one symbol (Dynamo's duck
    sizing) would have to compile again for a batch of another size."""
    if task != "multiple-choice":
        return specs
    return {
        name: msgspec.structs.replace(spec, shape=(spec.shape[0], CHOICES, *spec.shape[1:]))
        if spec.shape[1:2] == ("length",)
        else spec
        for name, spec in specs.items()
    }


def combinations(names: list[str], facts: Facts, parameters: Mapping[str, bool]) -> Iterator[Inputs]:
    """Every combination of guesses, the likeliest of each first."""
    choices = [guesses(name, facts, parameters) for name in names if known(name)]
    ranked = sorted(itertools.product(*(range(len(c)) for c in choices)), key=sum)
    for picks in ranked:
        made: Inputs = {}
        for choice, pick in zip(choices, picks, strict=True):
            made.update(choice[pick])
        if "input_ids" in made:
            # How much of the text is placeholders follows from how long the audio is: only the words may vary.
            made = {k: _of_fixed_length(s) if MODALITIES.get(k) == "audio" else s for k, s in made.items()}
        yield made
