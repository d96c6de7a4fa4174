"""The actor: everything that acts, and whatever of it an algorithm trains."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import gymnasium
import torch
from torch import Tensor, nn

from rl_core.compile.function import CompiledFunction
from rl_core.errors import ConfigError
from rl_core.gradients.loss import ModuleWatch
from rl_core.nn.distributions import Distribution
from rl_core.spaces import ACTION_MASK_KEY, made_up_observation, mask_sizes, random_env_actions
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State, map_observation


@dataclass(frozen=True, slots=True)
class ActionOutput:
    """What an actor returns for one step.

    Attributes:
        action: shape `(N, ...)`, in the actor's own space; this is what storages keep.
        env_action: shape `(N, ...)`, clipped or scaled to what the environment takes.
        state: recurrent state after the step, each `(N, S)`.
        extras: what an algorithm adds, each `(N, ...)`; stored by the schema it declares.
    """

    action: Tensor
    env_action: Tensor
    state: State
    extras: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionEvaluation:
    """What an actor says of actions that were taken.

    Attributes:
        distribution: over actions, batch axes those of the observations.
        log_prob: shape `(*batch,)`.
        value: shape `(*batch,)`; None for an actor without a state-value function.
        state: recurrent state after each step, each `(*batch, S)`.
    """

    distribution: Distribution
    log_prob: Tensor
    value: Tensor | None
    state: State

    @property
    def entropy(self) -> Tensor:
        """The policy's entropy, `(*batch,)`, computed where a loss asks for it."""
        return self.distribution.entropy()


class Actor(nn.Module, ABC):
    """Networks that map observations to actions, and to values.

    A subclass implements `distribution` and, as far as its algorithms need them, `value` or
    `q_values`. Recurrent actors also declare ``state_sizes``. Observation normalization belongs
    here, in front of the networks, so that it is saved and exported with the weights.

    Args:
        observation_space: of one environment.
        action_space: of one environment.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
    ) -> None:
        super().__init__()
        mask_sizes(observation_space, action_space)  # refuses masks that do not fit
        self.observation_space = observation_space
        self.action_space = action_space

    @abstractmethod
    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        """Return the distribution over actions.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)` for a sequence.
            state: recurrent state before the first step, each `(N, S)`; empty if feed-forward.
            episode_start: shape of the batch axes, bool: zero the state before these steps.
                Feed-forward actors ignore it.

        Returns:
            The distribution, and the recurrent state after each step; without that of cores
            which see actions, see `remember_action`.
        """

    @property
    @abstractmethod
    def action_spec(self) -> TensorSpec:
        """Shape and dtype of one actor-space action."""

    @abstractmethod
    def to_env_action(self, action: Tensor) -> Tensor:
        """Map actor-space actions `(N, ...)` to what the environment takes."""

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Map the environment's actions `(N, ...)`, as data sets hold them, to the actor's own.

        Raises:
            ConfigError: when the actor cannot.
        """
        raise ConfigError(
            f"{type(self).__name__} takes no given actions, and no random ones: it has no "
            "from_env_action"
        )

    @abstractmethod
    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what `get_action` turns into a sample.

        Args:
            batch_shape: leading axes, such as `(T, B)`.
            generator: on the actor's device.

        Returns:
            Shape `(*batch_shape, *noise_shape)`.
        """

    def value(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return state values `(*batch,)` and the recurrent state after each step."""
        raise ConfigError(f"{type(self).__name__} has no state-value function")

    def q_values(self, observation: Observation, action: Tensor | None, state: State) -> Tensor:
        """Return action values, `(C, *batch)` for C critics, or `(C, *batch, n)` if discrete."""
        raise ConfigError(f"{type(self).__name__} has no action-value function")

    def random_actions(
        self, num_envs: int, generator: torch.Generator, observation: Observation | None = None
    ) -> Tensor:
        """Draw actor-space actions `(num_envs, ...)` at random.

        By default they are the environment's, drawn uniformly between bounds (see
        `random_env_actions`) and mapped by `from_env_action`.

        Args:
            num_envs: how many.
            generator: on the actor's device.
            observation: shape `(num_envs, ...)`; its action masks are heeded. None allows all.
        """
        allowed = None if observation is None else self.action_mask(observation)
        drawn = random_env_actions(self.action_space, num_envs, generator, self.device, allowed)
        return self.from_env_action(drawn)

    def action_mask(self, observation: Observation) -> Tensor | None:
        """Return which actions observations allow, bool, for the action head; None allows all."""
        mask = observation.get(ACTION_MASK_KEY) if isinstance(observation, Mapping) else None
        return None if mask is None else mask.bool()

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Take observations into the running statistics; does nothing without them."""

    @property
    def normalizes_observations(self) -> bool:
        """Whether `update_normalization` does anything, so that it is worth gathering for."""
        return type(self).update_normalization is not Actor.update_normalization

    @property
    def policy_modules(self) -> tuple[str, ...]:
        """Names of the submodules that only the policy uses."""
        return ()

    @property
    def value_modules(self) -> tuple[str, ...]:
        """Names of the submodules that only the value function uses."""
        return ()

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """Size of each recurrent state by name; empty when feed-forward."""
        return {}

    @property
    def uses_objects(self) -> bool:
        """Whether it was given objects that no recipe can name, such as a network of the user's."""
        return False

    @property
    def is_recurrent(self) -> bool:
        """Whether acting needs a state."""
        return bool(self.state_sizes)

    @property
    def recurrent_hidden_state_size(self) -> int:
        """Numbers per environment in all recurrent states together; 0 when feed-forward."""
        return sum(self.state_sizes.values())

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device

    def actor_initial_states(self, num_envs: int) -> State:
        """Return the recurrent state at the start of episodes, each `(num_envs, S)` of zeros."""
        device = self.device
        return {
            name: torch.zeros(num_envs, size, device=device)
            for name, size in self.state_sizes.items()
        }

    def forward(self, observation: Observation) -> Tensor:
        """Return the environment's actions for observations `(N, ...)`: the policy's modes.

        This is what deployed policies need, such as after `torch.export.export`. Observations of
        float64, as many environments return, become float32.

        Raises:
            ConfigError: when the actor is recurrent, and `get_action` has to pass its state on.
        """
        if self.is_recurrent:
            raise ConfigError(
                f"{type(self).__name__} is recurrent: call get_action, which takes and returns its "
                "state"
            )
        observation = map_observation(_single_precision, observation)
        return self.get_action(observation, {}, None, deterministic=True).env_action

    def get_action(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose one action per environment.

        Args:
            observation: shape `(N, ...)`.
            state: each `(N, S)`.
            noise: shape `(N, *noise_shape)`, from `draw_noise`; may be None if deterministic.
            deterministic: take the distribution's mode.
            episode_start: shape `(N,)`, bool; only recurrent actors need it.

        Raises:
            ConfigError: when neither noise nor ``deterministic`` is given.
        """
        distribution, after = self.distribution(observation, state, episode_start)
        if deterministic:
            action = distribution.mode()
        elif noise is not None:
            action = distribution.sample(noise)
        else:
            raise ConfigError("get_action: give noise from draw_noise, or deterministic=True")
        if torch.is_grad_enabled():  # a caller without no_grad wants an action, not its history
            action = action.detach()
        after = self.remember_action(observation, action, state, after, episode_start)
        return ActionOutput(action, self.to_env_action(action), after)

    def remember_action(
        self,
        observation: Observation,
        action: Tensor,
        before: State,
        after: State,
        episode_start: Tensor | None,
    ) -> State:
        """Return the whole recurrent state after a step, when its action is known.

        Actors with recurrent cores that see actions override this; the default has none.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)` for a sequence.
            action: shape `(*batch, ...)`, actor-space.
            before: recurrent state before the first step, each `(N, S)`.
            after: what `distribution` returned, each `(*batch, S)`.
            episode_start: shape of the batch axes, bool; only recurrent actors need it.
        """
        return after

    def evaluate_actions(
        self,
        observation: Observation,
        action: Tensor,
        state: State,
        episode_start: Tensor | None = None,
    ) -> ActionEvaluation:
        """Say how likely actions are, and what the states are worth.

        This default leaves ``value`` None; actors with a state-value function define their own,
        which computes what both share once.

        Args:
            observation: with batch axes `(N,)`, or `(T, N)` for a sequence.
            action: shape `(*batch, ...)`, actor-space.
            state: recurrent state before the first step, each `(N, S)`.
            episode_start: shape of the batch axes, bool; only recurrent actors need it.
        """
        distribution, after = self.distribution(observation, state, episode_start)
        after = self.remember_action(observation, action, state, after, episode_start)
        return ActionEvaluation(distribution, distribution.log_prob(action), None, after)


class CompiledActing:
    """Acting with exploration, compiled where that pays: for feed-forward actors.

    Args:
        explore: see `Algorithm.explore`.
        actor: whose parameters it reads.
        extras: names of the extras that ``explore`` returns.

    Attributes:
        function: one graph per number of environments.
    """

    def __init__(
        self, explore: Callable[..., ActionOutput], actor: Actor, extras: Iterable[str] = ()
    ) -> None:
        self._explore = explore
        self._watch = ModuleWatch(actor)
        self._extras = tuple(extras)
        self.function = CompiledFunction(self._act, "the acting step", actor.device)
        self._is_looked_at = False

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Look for replaced parameters once for all steps of the block, not in each of them."""
        if self.function.mode != "off":
            self._look()
            self._is_looked_at = True
        try:
            yield
        finally:
            self._is_looked_at = False

    def __call__(
        self, observation: Observation, state: State, noise: Tensor, episode_start: Tensor | None
    ) -> ActionOutput:
        """Choose actions, by a graph where there is one; arguments as for `Algorithm.explore`."""
        if not state and self.function.mode != "off":
            if not self._is_looked_at:
                self._look()
            if (result := self.function(None, observation, noise, episode_start)) is not None:
                extras = {name: result[f"extras/{name}"] for name in self._extras}
                return ActionOutput(result["action"], result["env_action"], state, extras)
        return self._explore(observation, state, noise, episode_start)

    def _look(self) -> None:
        """Have the graphs traced anew where the actor's parameters or modes were replaced."""
        if self._watch.look():
            self.function.forget()

    def _act(
        self, _: None, observation: Observation, noise: Tensor, episode_start: Tensor | None
    ) -> Mapping[str, Tensor]:
        output = self._explore(observation, {}, noise, episode_start)
        extras = {f"extras/{name}": output.extras[name] for name in self._extras}
        return {"action": output.action, "env_action": output.env_action, **extras}


class HasActor(Protocol):
    """Anything that acts through an actor: an algorithm, an agent."""

    @property
    def actor(self) -> Actor:
        """What acts."""


ActorLoader: TypeAlias = Callable[[str], Actor]
"""Loads the actor of a run, by the run's directory, for the spaces of whoever asks."""


@torch.no_grad()
def distribution_class(actor: Actor) -> type[Distribution]:
    """Return the class of the distributions that an actor's policy draws actions from."""
    observation = made_up_observation(actor.observation_space, actor.device)
    begins = torch.ones(1, dtype=torch.bool, device=actor.device)
    with evaluation_mode(actor):
        distribution, _ = actor.distribution(observation, actor.actor_initial_states(1), begins)
    return type(distribution)


@contextmanager
def evaluation_mode(actor: Actor) -> Iterator[None]:
    """Put every module into evaluation mode within a block, and back into its own mode after it."""
    modes = [(module, module.training) for module in actor.modules()]
    actor.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _single_precision(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.float64 else values
