"""Acting as a compiled graph, where that gains something."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from rl_core.actor import ActionOutput
from rl_core.graphs import compilation_error, compile_graph
from rl_core.types import Observation, State

ActingGraph: TypeAlias = Callable[[Observation, Tensor], tuple[Tensor, Tensor]]
"""From observation and noise to the actor's and the environment's action."""


class ActingGraphs:
    """Compiled acting of a feed-forward actor, one graph per number of environments.

    Args:
        explore: from observation, no state, and noise to actions.
    """

    def __init__(self, explore: Callable[[Observation, State, Tensor], ActionOutput]) -> None:
        self._explore = explore
        self._graphs: dict[torch.Size, ActingGraph] = {}

    def __call__(
        self, observation: Observation, noise: Tensor, must_compile: bool
    ) -> tuple[Tensor, Tensor]:
        """Sample actions.

        Args:
            observation: shape `(B, ...)`.
            noise: shape `(B, ...)`.
            must_compile: raise what compiling raises, instead of going on uncompiled.

        Returns:
            The actor's and the environment's action, each `(B, ...)`.
        """
        graph = self._graphs.get(noise.shape)
        if graph is None:
            graph = self._graphs[noise.shape] = self._compile(observation, noise, must_compile)
        return graph(observation, noise)

    def _compile(self, observation: Observation, noise: Tensor, must_compile: bool) -> ActingGraph:
        def act(observation: Observation, noise: Tensor) -> tuple[Tensor, Tensor]:
            output = self._explore(observation, {}, noise)
            return output.action, output.env_action

        if noise.device.type != "cpu":
            return act
        try:
            graph: ActingGraph = compile_graph(act, (), (observation, noise), noise.device)
        except Exception as error:
            if must_compile:
                raise compilation_error("the acting step", error) from error
            return act
        return graph
