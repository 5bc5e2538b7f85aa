"""What generated modules call besides programs."""

import torch

from spyre_backend import upstream
from spyre_backend.simulator.kernel import host_alias

_INT64 = torch.iinfo(torch.int64)


def draw_seeds(seeds: torch.Tensor) -> None:
    """Fill `seeds` (int64, on the device) from the device's generator.

    Seeds are drawn on the host, as every accelerator does it: they are a parameter of the launch, not a computation.
    """
    generator = torch.Generator()
    generator.set_state(torch.spyre.get_rng_state())  # type: ignore[attr-defined]
    with upstream.without_function_modes():
        host_alias(seeds).copy_(torch.randint(_INT64.min, _INT64.max, seeds.shape, generator=generator))
    torch.spyre.set_rng_state(generator.get_state())  # type: ignore[attr-defined]
