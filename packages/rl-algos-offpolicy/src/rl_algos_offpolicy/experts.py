"""Experts: policies that act for others to learn from."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from rl_core.actor import Actor, ActorLoader, HasActor, distribution_class, evaluation_mode
from rl_core.env import as_numpy
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.spaces import action_problem, check_same_space
from rl_core.stateful import StateReader
from rl_core.types import (
    ArrayLike,
    ArrayObservation,
    Observation,
    State,
    StateDict,
    map_observation,
)

ExpertFunction: TypeAlias = Callable[[ArrayObservation], ArrayLike]
"""From observations `(B, ...)`, arrays or a dict of them, to environment actions `(B, ...)`."""

Expert: TypeAlias = Actor | HasActor | ExpertFunction
"""An actor, what has one, or a function."""


class ExpertPolicy:
    """Acts as an expert in the environments of a learner, on whichever device it is.

    Args:
        expert: what acts, or the directory of a run, which is read by `load`.
        learner: for whose spaces.
        is_deterministic: take the mode, instead of sampling.
        load_actor: reads the actor of a run; only directories need it.

    Attributes:
        state: the expert's recurrent state, each `(B, S)`; empty when it has none.

    Raises:
        ConfigError: when it is none of these, or a function or a deterministic policy is to be
            sampled from.
        SpaceError: when an actor was built for other spaces.
    """

    def __init__(
        self,
        expert: Expert | str,
        learner: Actor,
        *,
        is_deterministic: bool,
        load_actor: ActorLoader | None = None,
    ) -> None:
        self.state: State = {}
        self._learner = learner
        self._directory = expert if isinstance(expert, str) else None
        self._load_actor = load_actor
        self._is_deterministic = is_deterministic
        self._actor: Actor | None = None
        self._function: ExpertFunction | None = None
        if isinstance(expert, str):
            return
        actor = expert if isinstance(expert, Actor) else getattr(expert, "actor", None)
        if isinstance(actor, Actor):
            for name in ("observation", "action"):
                expected, got = (getattr(each, f"{name}_space") for each in (learner, actor))
                check_same_space(expected, got, f"expert's {name} space")
            self._actor = self._checked(actor)
        elif callable(expert):
            if not is_deterministic:
                raise ConfigError(
                    "deterministic_expert=False has no effect on a function, which gives actions "
                    "as they are; leave it out"
                )
            self._function = expert
        else:
            raise ConfigError(
                f"expert is {type(expert).__name__}; expected an actor, what has one, or a "
                "function from observations to actions"
            )

    def load(self) -> Actor | None:
        """Return the actor, read from the run that was named; None where a function acts.

        Raises:
            CheckpointError: when there is no such run, or its spaces or actor do not fit.
            ConfigError: for a directory, where the algorithm was not built by name; and where a
                deterministic policy is to be sampled from.
        """
        if self._directory is not None and self._actor is None:
            if self._load_actor is None:
                raise ConfigError(
                    f"expert is the directory '{self._directory}', which only an algorithm that is "
                    "built by name reads; give the actor itself: load_actor of rl_train loads it"
                )
            self._actor = self._checked(self._load_actor(self._directory))
        return self._actor

    def _checked(self, actor: Actor) -> Actor:
        if not self._is_deterministic and distribution_class(actor).noise_kind == "none":
            raise ConfigError(
                "deterministic_expert=False has no effect on this expert, whose policy is "
                "deterministic; leave it out"
            )
        return actor

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what sampling from the expert needs."""
        actor = self.load()
        if actor is None:
            return torch.zeros(*batch_shape, 0, device=self._learner.device)
        if generator.device != actor.device:
            seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
            generator = torch.Generator(actor.device).manual_seed(int(seed))
        return actor.draw_noise(batch_shape, generator).to(self._learner.device)

    def act(self, observation: Observation, noise: Tensor, episode_start: Tensor | None) -> Tensor:
        """Return environment actions, shape `(B, ...)`.

        Args:
            observation: shape `(B, ...)`.
            noise: shape `(B, ...)`, one step of what `draw_noise` drew.
            episode_start: shape `(B,)`, bool.

        Raises:
            DataError: when a function returns something else than actions.
        """
        actor = self.load()
        if actor is None:
            return self._ask(observation)
        device = actor.device
        shapes = {name: (len(noise), size) for name, size in actor.state_sizes.items()}
        if {name: tuple(part.shape) for name, part in self.state.items()} != shapes:
            self.state = actor.actor_initial_states(len(noise))
        seen = map_observation(lambda part: part.to(device), observation)
        starts = None if episode_start is None else episode_start.to(device)
        with torch.no_grad(), evaluation_mode(actor):
            output = actor.get_action(
                seen, self.state, noise.to(device), self._is_deterministic, starts
            )
        self.state = output.state
        return output.env_action.to(self._learner.device)

    def load_state(self, state: StateDict) -> None:
        """Take over a saved recurrent state."""
        saved = StateReader(state, "algorithm/more").tensors("expert")
        actor = None if not saved else self.load()
        sizes = {} if actor is None else actor.state_sizes
        got = {name: tensor.shape[-1] for name, tensor in saved.items() if tensor.dim() == 2}
        if got != dict(sizes):
            raise CheckpointError(
                f"algorithm/more: the saved expert has the states {got}; expected {dict(sizes)}"
            )
        device = self._learner.device if actor is None else actor.device
        self.state = {name: tensor.to(device, copy=True) for name, tensor in saved.items()}

    def _ask(self, observation: Observation) -> Tensor:
        assert self._function is not None
        arrays = (
            observation.numpy(force=True)
            if isinstance(observation, Tensor)
            else {key: part.numpy(force=True) for key, part in observation.items()}
        )
        actions = as_numpy(self._function(arrays))
        space = self._learner.action_space
        first = observation if isinstance(observation, Tensor) else next(iter(observation.values()))
        problem = action_problem(space, actions, len(first), "observation")
        if problem is not None:
            raise DataError(f"what the expert returned: {problem}")
        return torch.from_numpy(np.array(actions, dtype=space.dtype)).to(self._learner.device)
