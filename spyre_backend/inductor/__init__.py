"""The Inductor extension: `torch.compile` on the device, through upstream Inductor, into tile programs.

`register` connects it; the classes are imported then, and not before.
"""

import functools
from typing import Any

__all__ = ["register"]

DEVICE = "spyre"

# what upstream asks `torch.spyre` for when it looks for the extension of an out-of-tree device
_ASKED_BY_UPSTREAM = frozenset({"Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen"})


def __getattr__(name: str) -> Any:
    if name in _ASKED_BY_UPSTREAM:
        # upstream would now register these names itself, but without the cache key: so register, and hand out nothing
        try:
            register()
        except AttributeError as error:
            # upstream takes an AttributeError for "no extension", and would hide what is missing
            raise ImportError(f"the Inductor extension of {DEVICE} does not fit this torch: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def register() -> None:
    """Make Inductor know the device: scheduling, wrapper, cache key, device code and lowerings. Idempotent."""
    from spyre_backend import upstream
    from spyre_backend.device.module import register_dynamo_interface
    from spyre_backend.inductor.device_ops import SpyreDeviceOps
    from spyre_backend.inductor.graph_pass import SpyreGraphPass
    from spyre_backend.inductor.lowerings import install
    from spyre_backend.inductor.scheduling import SpyreScheduling
    from spyre_backend.inductor.wrapper import SpyreCppWrapper, SpyrePythonWrapper

    # lowering asks it for the properties of the device
    register_dynamo_interface()
    upstream.register_backend_for_device(
        DEVICE, SpyreScheduling, SpyrePythonWrapper, SpyreCppWrapper, device_custom_pass=SpyreGraphPass(DEVICE)
    )
    upstream.register_device_op_overrides(DEVICE, SpyreDeviceOps())
    install(DEVICE)
