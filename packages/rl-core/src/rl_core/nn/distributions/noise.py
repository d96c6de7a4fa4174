"""The noise that distributions turn into actions."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from rl_core.errors import ConfigError, DeviceError, nearest

NoiseKind = Literal["gumbel", "normal", "logistic", "none"]
"""The kind of noise that a distribution turns into samples."""


def draw_noise(
    kind: NoiseKind,
    shape: Sequence[int],
    generator: torch.Generator,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Draw independent standard noise.

    Args:
        kind: standard Gumbel, normal or logistic; ``"none"`` draws nothing and returns zeros.
        shape: of the result.
        generator: on ``device``.
        device: of the result.
        dtype: of the result; floating-point.

    Returns:
        Finite numbers of the given shape.

    Raises:
        ConfigError: for an unknown kind.
        DeviceError: if the generator is on another kind of device.
    """
    if generator.device.type != torch.device(device).type:
        raise DeviceError(f"the generator is on {generator.device}; expected one on {device}")
    if kind == "normal":
        return torch.randn(tuple(shape), generator=generator, device=device, dtype=dtype)
    noise = torch.zeros(tuple(shape), device=device, dtype=dtype)
    if kind == "gumbel":
        # Without the bound a draw of 0 would be infinite, and could choose a forbidden action.
        smallest = torch.finfo(dtype).tiny
        return noise.exponential_(generator=generator).clamp_(min=smallest).log_().neg_()
    if kind == "logistic":
        return noise.uniform_(generator=generator).logit_(eps=torch.finfo(dtype).eps)
    if kind != "none":
        known = ("gumbel", "normal", "logistic", "none")
        raise ConfigError(f"noise: unknown kind '{kind}'{nearest(kind, known)}")
    return noise
