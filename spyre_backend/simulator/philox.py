"""Philox 4x32-10, the counter-based generator: a draw depends on the seed and the offset alone."""

import math

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIER_0 = 0xD2511F53
_MULTIPLIER_1 = 0xCD9E8D57
_KEY_STEP_0 = 0x9E3779B9
_KEY_STEP_1 = 0xBB67AE85
_ROUNDS = 10


def philox(seed: torch.Tensor, offset: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four tensors of 32 random bits each, as int64 in [0, 2**32), in the broadcast shape of the int64 operands."""
    key_0, key_1 = seed & _MASK, (seed >> 32) & _MASK
    offset, _ = torch.broadcast_tensors(offset, seed)
    c0, c1 = offset & _MASK, (offset >> 32) & _MASK
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(_ROUNDS):
        low_0, high_0 = _wide_product(c0, _MULTIPLIER_0)
        low_1, high_1 = _wide_product(c2, _MULTIPLIER_1)
        c0, c1, c2, c3 = high_1 ^ c1 ^ key_0, low_1, high_0 ^ c3 ^ key_1, low_0
        key_0, key_1 = (key_0 + _KEY_STEP_0) & _MASK, (key_1 + _KEY_STEP_1) & _MASK
    return c0, c1, c2, c3


def _wide_product(a: torch.Tensor, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Low and high 32 bits of a 32 × 32 bit product; int64 wraps around, which keeps the 64 bits exact."""
    product = a * b
    return product & _MASK, (product >> 32) & _MASK


def uniform(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """float32 in [0, 1), with 24 random bits, so that 1 is never reached."""
    return (philox(seed, offset)[0] >> 8).to(torch.float32) * 2.0**-24


def normal(seed: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """float32 of the standard normal distribution (Box-Muller)."""
    bits_0, bits_1, _, _ = philox(seed, offset)
    radius_bits = ((bits_0 >> 8) + 1).to(torch.float32) * 2.0**-24
    angle = (bits_1 >> 8).to(torch.float32) * (2.0**-24 * 2 * math.pi)
    return torch.sqrt(-2.0 * torch.log(radius_bits)) * torch.cos(angle)


def integer(seed: torch.Tensor, offset: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """int64 in [low, high). Ranges beyond 2**32 use 63 random bits."""
    bits_0, bits_1, _, _ = philox(seed, offset)
    span = high - low
    wide = ((bits_1 << 32) | bits_0) & 0x7FFFFFFFFFFFFFFF
    return low + torch.where(span > _MASK, wide, bits_0) % torch.where(span > 0, span, 1)
