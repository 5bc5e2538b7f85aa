"""Which architectures the installed transformers has, and for which tasks. Asked from its auto mappings' names."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

TASKS: Mapping[str, str] = {
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "speech-seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "image-text-to-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "multimodal-lm": "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "text-to-waveform": "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "rnnt": "MODEL_FOR_RNNT_MAPPING_NAMES",
    "tdt": "MODEL_FOR_TDT_MAPPING_NAMES",
    "object-detection": "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "zero-shot-object-detection": "MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES",
    "universal-segmentation": "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "instance-segmentation": "MODEL_FOR_INSTANCE_SEGMENTATION_MAPPING_NAMES",
    "semantic-segmentation": "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "image-segmentation": "MODEL_FOR_IMAGE_SEGMENTATION_MAPPING_NAMES",
    "mask-generation": "MODEL_FOR_MASK_GENERATION_MAPPING_NAMES",
    "depth-estimation": "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "normal-estimation": "MODEL_FOR_NORMAL_ESTIMATION_MAPPING_NAMES",
    "pointmap-estimation": "MODEL_FOR_POINTMAP_ESTIMATION_MAPPING_NAMES",
    "pose-estimation": "MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES",
    "keypoint-detection": "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES",
    "keypoint-matching": "MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES",
    "image-matting": "MODEL_FOR_IMAGE_MATTING_MAPPING_NAMES",
    "image-to-image": "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES",
    "text-recognition": "MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES",
    "table-recognition": "MODEL_FOR_TABLE_RECOGNITION_MAPPING_NAMES",
    "zero-shot-image-classification": "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "image-classification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "video-classification": "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
    "audio-classification": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "text-to-spectrogram": "MODEL_FOR_TEXT_TO_SPECTROGRAM_MAPPING_NAMES",
    "audio-tokenization": "MODEL_FOR_AUDIO_TOKENIZATION_NAMES",
    "time-series-prediction": "MODEL_FOR_TIME_SERIES_PREDICTION_MAPPING_NAMES",
    "decision": "MODEL_FOR_DECISION_MAPPING_NAMES",
    "visual-question-answering": "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
    "document-question-answering": "MODEL_FOR_DOCUMENT_QUESTION_ANSWERING_MAPPING_NAMES",
    "table-question-answering": "MODEL_FOR_TABLE_QUESTION_ANSWERING_MAPPING_NAMES",
    "retrieval": "MODEL_FOR_RETRIEVAL_MAPPING_NAMES",
    "pretraining": "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "base": "MODEL_MAPPING_NAMES",
    "sequence-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "token-classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "question-answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "multiple-choice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "next-sentence-prediction": "MODEL_FOR_NEXT_SENTENCE_PREDICTION_MAPPING_NAMES",
    "audio-frame-classification": "MODEL_FOR_AUDIO_FRAME_CLASSIFICATION_MAPPING_NAMES",
    "audio-xvector": "MODEL_FOR_AUDIO_XVECTOR_MAPPING_NAMES",
    "masked-image-modeling": "MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES",
    "causal-image-modeling": "MODEL_FOR_CAUSAL_IMAGE_MODELING_MAPPING_NAMES",
    "time-series-classification": "MODEL_FOR_TIME_SERIES_CLASSIFICATION_MAPPING_NAMES",
    "time-series-regression": "MODEL_FOR_TIME_SERIES_REGRESSION_MAPPING_NAMES",
    "backbone": "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "text-encoding": "MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES",
    "image-encoding": "MODEL_FOR_IMAGE_MAPPING_NAMES",
}
"""Task -> the table of class names that transformers keeps for it. The first task of a type is its main one: heads that
exercise the whole model first, the bare model after those, heads that merely pool or project last."""


@dataclass(frozen=True)
class Architecture:
    """One model type of transformers."""

    model_type: str
    tasks: tuple[str, ...]
    """In the order of `TASKS`; never empty."""

    @property
    def main_task(self) -> str:
        """The task whose class says most about the model."""
        return self.tasks[0]


@functools.cache
def _class_names() -> Mapping[str, Mapping[str, str]]:
    """Task -> model type -> class name. A transformers that lacks a table lacks the task."""
    from transformers.models.auto import modeling_auto

    tables = {task: getattr(modeling_auto, table, {}) for task, table in TASKS.items()}
    return {
        task: {kind: names if isinstance(names, str) else names[0] for kind, names in table.items()}
        for task, table in tables.items()
    }


@functools.cache
def architectures() -> Mapping[str, Architecture]:
    """Every model type that has a class for some task, by name in alphabetical order. Imports no modelling module."""
    names = _class_names()
    types = sorted({model_type for table in names.values() for model_type in table})
    return {t: Architecture(t, tuple(task for task, table in names.items() if t in table)) for t in types}


def class_name(model_type: str, task: str) -> str:
    """The class of transformers for a type and task. Raises KeyError, naming both, where there is none."""
    try:
        return _class_names()[task][model_type]
    except KeyError:
        raise KeyError(f"transformers has no class for model type {model_type!r} and task {task!r}") from None


def distinct_tasks(architecture: Architecture) -> tuple[str, ...]:
    """The tasks of a type less those whose class an earlier task has already."""
    seen: dict[str, str] = {}
    for task in architecture.tasks:
        seen.setdefault(class_name(architecture.model_type, task), task)
    return tuple(seen.values())
