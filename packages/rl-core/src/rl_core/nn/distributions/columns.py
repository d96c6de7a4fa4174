"""Distributions as columns of a rollout, and back again from the rows of a minibatch."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from rl_core.nn.distributions.base import Distribution

DistributionT = TypeVar("DistributionT", bound=Distribution)

_PREFIX = "old_policy."


def to_columns(distribution: Distribution, batch_shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the parameters of a distribution by name, each `(*batch_shape, n)`, as copies.

    Copies, because parameters of a network change as it learns; gradients flow through them. Masks
    are left out: they belong to the observations.

    Args:
        distribution: of the behavior policy.
        batch_shape: of its observations; parameters that do not depend on them are repeated.
    """
    return {
        f"{_PREFIX}{name}": value.expand(*batch_shape, value.shape[-1]).clone(
            memory_format=torch.contiguous_format
        )
        for name, value in _parameters(distribution).items()
    }


def from_columns(like: DistributionT, columns: Mapping[str, Tensor]) -> DistributionT:
    """Rebuild the distribution whose parameters `to_columns` returned.

    Args:
        like: a distribution for the same observations; its class and masks are used.
        columns: each `(N, n)`, the minibatch's rows; other columns are ignored.
    """
    assert is_dataclass(like)
    values = {name: columns[f"{_PREFIX}{name}"] for name in _parameters(like)}
    return replace(like, **values)


def _parameters(distribution: Distribution) -> dict[str, Tensor]:
    assert is_dataclass(distribution)
    parts = ((field.name, getattr(distribution, field.name)) for field in fields(distribution))
    return {n: p for n, p in parts if isinstance(p, Tensor) and p.is_floating_point()}
