"""What both kinds of comparisons of single updates share."""

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import gymnasium
import numpy as np
import torch
from torch import Tensor

from rl_core.gradients import OptimizerConfig

SIZE = 5
ACTION_SIZE = 2
NUM_ACTIONS = 3
EPSILON = 1e-5
OPTIMIZER = OptimizerConfig(eps=EPSILON)
"""Adam's own epsilon makes steps of the rounding errors of units that are switched off."""

Weights: TypeAlias = dict[str, Tensor]
"""Weights by name, in the shapes of our actor."""


@dataclass(frozen=True)
class Found:
    """How far two systems are apart.

    Attributes:
        algorithm: its name, and what is special about the comparison.
        updates: how often both learned.
        apart: by part of the networks, the distance of the weights over how far they moved.
    """

    algorithm: str
    updates: int
    apart: Mapping[str, float]


class Noisy(gymnasium.Env[Any, Any]):
    """Gives random observations, rewards and both kinds of endings, and keeps what it gave.

    Args:
        is_discrete: choose among three actions instead of two real ones.
    """

    def __init__(self, *, is_discrete: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        self.action_space = (
            gymnasium.spaces.Discrete(NUM_ACTIONS)
            if is_discrete
            else gymnasium.spaces.Box(-1.0, 1.0, (ACTION_SIZE,), np.float32)
        )
        self._numbers = np.random.default_rng(0)
        self.rows: list[tuple[Any, float, bool, bool, Any]] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._observation = self._draw()
        return self._observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Go on, whatever the action."""
        before, after = self._observation, self._draw()
        reward = float(self._numbers.normal())
        terminated, truncated = (bool(self._numbers.random() < 0.05) for _ in range(2))
        truncated = truncated and not terminated
        self.rows.append((before, reward, terminated, truncated, after))
        self._observation = after
        return after, reward, terminated, truncated, {}

    def _draw(self) -> Any:
        return self._numbers.normal(size=SIZE).astype(np.float32)


def renamed(source: Mapping[str, Tensor], named: Mapping[str, str]) -> Weights:
    """Return weights and biases of the peer's layers by our names."""
    return {
        f"{ours}.{kind}": source[f"{theirs}.{kind}"].clone()
        for ours, theirs in named.items()
        for kind in ("weight", "bias")
    }


def apart_by_part(start: Weights, theirs: Weights, ours: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the distance of two systems over how far the peer moved, by part.

    A part that neither moved is left out; one that only ours moved is infinitely far away.
    """
    parts: dict[str, list[str]] = {}
    for name in start:
        part = name.partition(".")[0].partition("_")[0]
        parts.setdefault("policy" if part == "action" else part, []).append(name)

    def norm(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: list[str]) -> float:
        squares = [(one[name] - other[name]).square().sum() for name in names]
        return float(torch.stack(squares).sum().sqrt())

    apart: dict[str, float] = {}
    for part, names in parts.items():
        distance, moved = norm(ours, theirs, names), norm(theirs, start, names)
        if moved or distance:
            apart[part] = distance / moved if moved else math.inf
    return apart


def library(name: str) -> Any:
    return cast("Any", importlib.import_module(name))
