"""Optional packages that some architectures need, made to work with the torch that is installed."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

_CUSTOM_OPS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@functools.cache
def prepare() -> Any:
    """Makes torchvision importable where its compiled part does not fit the installed torch.

    The wheel on PyPI is built for CUDA. With a CPU build of torch its library does not load, and the import ends with
    `operator torchvision::nms does not exist`, which takes timm along. The Python part needs no more than that the
    operators are declared. Returns what holds the declarations; None where they are not needed.
    """
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is None:
        return None
    import torch

    try:
        importlib.import_module("torchvision")
        return None
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _CUSTOM_OPS:
        library.define(schema)
    importlib.import_module("torchvision")
    return library
