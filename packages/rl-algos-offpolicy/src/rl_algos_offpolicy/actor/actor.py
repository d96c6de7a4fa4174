"""The actor of off-policy algorithms, its policy, and what its networks are given of a batch."""

from collections.abc import Mapping
from functools import cached_property

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy.actor.config import (
    OffPolicyActorConfig,
    PolicyKind,
    check_spaces,
    policy_misfit,
)
from rl_algos_offpolicy.actor.networks import NetworkBuilder, SpaceExtractor, WidthExtractor
from rl_algos_offpolicy.recurrent import (
    NetworkInputs,
    RecurrentInputs,
    RecurrentNetwork,
    all_rows,
    successors,
    unroll,
)
from rl_core.actor import Actor
from rl_core.batch import ReplayBatch
from rl_core.config import check_argument
from rl_core.errors import ConfigError
from rl_core.nn.distributions import ActionHead, Categories, Deterministic, Distribution
from rl_core.nn.torso import Torso, check_encoder_options
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State


class Policy(nn.Module):
    """What chooses actions, where that is a network: a torso and an action head.

    Args:
        torso: features of the observation, with a recurrent core or without.
        head: distribution over actions.
    """

    state_name = "policy"

    def __init__(self, torso: Torso, head: ActionHead) -> None:
        super().__init__()
        self.torso = torso
        self.head = head

    @property
    def is_recurrent(self) -> bool:
        """Whether there is a recurrent core."""
        return self.torso.core is not None

    def forward(self, inputs: NetworkInputs) -> Distribution:
        """Return the distribution over actions at inputs with any batch axes."""
        if isinstance(inputs, RecurrentInputs):
            assert self.torso.core is not None
            features, _ = self.torso.core.step(inputs.features, inputs.state)
        else:
            features, _ = self.torso(inputs, None, None)
        distribution: Distribution = self.head(features)
        return distribution

    def step(
        self, observation: Observation, state: Tensor | None, episode_start: Tensor | None
    ) -> tuple[Distribution, Tensor | None]:
        """Return the distribution, and the state after each step; see `Torso`."""
        features, after = self.torso(observation, state, episode_start)
        return self.head(features), after

    def encode(self, observation: Observation) -> Tensor:
        """Compute what goes into the recurrent core."""
        return self.torso.encode(observation)

    def advance(
        self, features: Tensor, action: Tensor, state: Tensor, episode_start: Tensor | None
    ) -> Tensor:
        """Return the states after each row; the policy's core sees no actions."""
        assert self.torso.core is not None
        _, states = self.torso.core(features, state, episode_start)
        after: Tensor = states
        return after


class OffPolicyActor(Actor):
    """Critics, and a policy where there is one, which shares no network with them.

    The actor's own actions are in [-1, 1] where they are real numbers, and scaled to the bounds
    for the environment.

    A policy is an observation's encoder, layers, a recurrent core and an action head. A critic is
    encoders of the observation and of a real action side by side, layers, a recurrent core and a
    linear output. Of these, critics share the encoder of the observation, which is computed once
    for all. There is no recurrent core by default.

    The encoders and the layers may be the user's: what makes them is called once for the policy and
    once for each critic, so that none is shared. What it makes is an ``nn.Module`` with an integer
    ``out_features`` that takes any batch axes. The class of a module is such a maker.

    A critic's recurrent core sees the actions that were taken. While acting, the states of policy
    and critics advance together, and storages keep both.

    Args:
        observation_space: vectors, images, categories, or a dict of them.
        action_space: Discrete, or a Box with finite bounds.
        config: the networks.
        observation_extractor: from the observation space to the module in the default encoder's
            place, which may be a `NormalizingEncoder`.
        action_extractor: from the action space to a module for real actions, which otherwise go
            into the critics as they are.
        common_extractor: from a width to the module in the place of the layers.

    Attributes:
        critics: the action-value functions.
        policy: what chooses actions; None when it is greedy.

    Raises:
        SpaceError: for a space that it cannot do.
        ConfigError: when the kind of policy does not fit the action space, options contradict an
            extractor, or one is for vectors or images, and the observations have none.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        config: OffPolicyActorConfig | None = None,
        *,
        observation_extractor: SpaceExtractor | None = None,
        action_extractor: SpaceExtractor | None = None,
        common_extractor: WidthExtractor | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        config = check_argument("config", config, OffPolicyActorConfig | None)
        self.config = config = config or OffPolicyActorConfig()
        check_spaces(observation_space, action_space, config)
        builder = NetworkBuilder(
            observation_space=observation_space,
            action_space=action_space,
            config=config,
            observation_extractor=observation_extractor,
            action_extractor=action_extractor,
            common_extractor=common_extractor,
        )
        if observation_extractor is None:
            check_encoder_options(observation_space, config, has_body=config.body is not None)
        self._uses_objects = builder.has_extractors
        self.policy = None if config.policy == "greedy" else Policy(*builder.build_policy())
        if isinstance(action_space, spaces.Discrete):
            self._categories = Categories(action_space)
        self.critics = builder.build_critics()

    @property
    def uses_objects(self) -> bool:
        """Whether a part of the networks is the user's own."""
        return self._uses_objects

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """Sizes of the recurrent states of the policy, and of all critics together."""
        if not self.critics.is_recurrent:
            return {}
        sizes = {} if self.policy is None else {"policy": self.policy.torso.state_size}
        return {**sizes, "critics": self.critics.state_size}

    @property
    def is_discrete(self) -> bool:
        """Whether actions are categories, all of which the critics evaluate at once."""
        return isinstance(self.action_space, spaces.Discrete)

    @property
    def num_actions(self) -> int:
        """How many actions there are; other actors than discrete ones have no such attribute."""
        if not isinstance(self.action_space, spaces.Discrete):
            raise AttributeError(f"actions of {self.action_space} are not counted")
        return int(self.action_space.n)

    @property
    def action_spec(self) -> TensorSpec:
        """A category, or numbers in [-1, 1]."""
        if self.policy is None:
            return TensorSpec((), torch.int64)
        return TensorSpec(self.policy.head.action_shape, self.policy.head.action_dtype)

    @property
    def policy_modules(self) -> tuple[str, ...]:
        """The policy, when it has a network."""
        return () if self.policy is None else ("policy",)

    @property
    def value_modules(self) -> tuple[str, ...]:
        """The critics, unless actions are chosen by them."""
        return () if self.policy is None else ("critics",)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        """Return the policy at the observations; see `Actor.distribution`."""
        if self.policy is None:
            values, states = self.greedy_values(observation, state, episode_start)
            return Deterministic(values.argmax(-1)), states
        if not self.is_recurrent:
            distribution: Distribution = self.policy(observation)
            return distribution, {}
        distribution, after = self.policy.step(observation, state["policy"], episode_start)
        assert after is not None
        return distribution, {"policy": after}

    def greedy_values(
        self, observation: Observation, state: State, episode_start: Tensor | None
    ) -> tuple[Tensor, State]:
        """Return the first critic's values of all discrete actions, `(*batch, n)`.

        Also the recurrent state after each step; the arguments are those of `distribution`.
        """
        if not self.is_recurrent:
            values: Tensor = self.critics(observation)[0]
            return values, {}
        assert episode_start is not None
        all_values, after = self.critics.step(observation, state["critics"], episode_start)
        return all_values[0], {"critics": after}

    def remember_action(
        self,
        observation: Observation,
        action: Tensor,
        before: State,
        after: State,
        episode_start: Tensor | None,
    ) -> State:
        """Let the critics' recurrent cores see the action; see `Actor.remember_action`."""
        if self.policy is None or not self.is_recurrent:
            return after
        assert episode_start is not None
        features = self.critics.encode(observation)
        states = self.critics.advance(features, action, before["critics"], episode_start)
        return {**after, "critics": states}

    def q_values(self, observation: NetworkInputs, action: Tensor | None, state: State) -> Tensor:
        """Return the values of given actions, or of all discrete ones; see `Actor.q_values`.

        Args:
            observation: with any batch axes, or what recurrent critics are given of it.
            action: shape `(*batch, ...)`, or None.
            state: each `(*batch, S)`; looked at where recurrent critics are given observations.
        """
        if self.is_recurrent and not isinstance(observation, RecurrentInputs):
            observation = RecurrentInputs(self.critics.encode(observation), state["critics"])
        values: Tensor = self.critics(observation, action)
        return values

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale to the bounds, or count from the space's first category."""
        return self._env_actions.to_env_action(action)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Undo `to_env_action`, for actions of a data set."""
        return self._env_actions.from_env_action(env_action)

    @property
    def _env_actions(self) -> ActionHead | Categories:
        return self._categories if self.policy is None else self.policy.head

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what sampling from the policy needs."""
        if self.policy is None:
            return torch.zeros(*batch_shape, 0, device=generator.device)
        return self.policy.head.draw_noise(batch_shape, generator)

    def random_actions(
        self, num_envs: int, generator: torch.Generator, observation: Observation | None = None
    ) -> Tensor:
        """Draw categories, or numbers in [-1, 1], uniformly."""
        device = generator.device
        if self.is_discrete:
            return torch.randint(self.num_actions, (num_envs,), generator=generator, device=device)
        shape = (num_envs, *self.action_spec.shape)
        return 2.0 * torch.rand(shape, generator=generator, device=device) - 1.0

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Refresh the running statistics of the policy and of the critics."""
        self.critics.update_normalization(observation, mask)
        if self.policy is not None:
            self.policy.torso.update_normalization(observation, mask)

    @cached_property
    def normalizes_observations(self) -> bool:
        """Whether an encoder, the user's too, keeps running statistics."""
        policy = self.policy
        return self.critics.normalizes or (policy is not None and policy.torso.normalizes)


def check_policy(actor: Actor, kind: PolicyKind, algorithm: str) -> OffPolicyActor:
    """Return the actor, if it has the kind of policy that an algorithm learns.

    Raises:
        ConfigError: for another actor or kind of policy, saying which algorithms can learn it.
    """
    if not isinstance(actor, OffPolicyActor) or actor.config.policy != kind:
        raise ConfigError(
            f"{algorithm} needs an OffPolicyActor with a {kind} policy; "
            + (policy_misfit(kind, actor.action_space) or f"set actor.policy to '{kind}'")
        )
    return actor


def obs_inputs(network: RecurrentNetwork, batch: ReplayBatch) -> NetworkInputs:
    """Return a network's inputs at the batch's observations.

    Args:
        network: whose recurrent state is found; a target network has its own.
        batch: transitions `(N, ...)`, or sequences `(T, N, ...)` for a recurrent network.

    Raises:
        ConfigError: when the batch is of the other kind.
    """
    if not _is_sequential(network, batch):
        return batch.observation
    return unroll(network, batch, batch.observation)


def next_obs_inputs(network: RecurrentNetwork, batch: ReplayBatch) -> NetworkInputs:
    """Return a network's inputs at the batch's next observations; see `obs_inputs`."""
    if not _is_sequential(network, batch):
        return batch.next_observation
    return successors(unroll(network, batch, all_rows(batch)), batch)


def obs_and_next_obs_inputs(
    network: RecurrentNetwork, batch: ReplayBatch
) -> tuple[NetworkInputs, NetworkInputs]:
    """Return both for a network that is evaluated at both, unrolling it once.

    Those at the next observations are constants: no gradient goes through them.
    """
    if not _is_sequential(network, batch):
        return batch.observation, batch.next_observation
    rows = unroll(network, batch, all_rows(batch))
    return rows.first(len(batch.num_steps)), successors(rows.detach(), batch)


def detached(inputs: NetworkInputs) -> NetworkInputs:
    """Return inputs without the gradient that reaches a recurrent network through them."""
    return inputs.detach() if isinstance(inputs, RecurrentInputs) else inputs


def _is_sequential(network: RecurrentNetwork, batch: ReplayBatch) -> bool:
    is_recurrent = network.is_recurrent
    if is_recurrent and batch.start is None:
        raise ConfigError(
            "recurrent actors learn from sequences, but the storage gives single transitions; set "
            "storage.sequences, or actor.recurrent_net to 'none'"
        )
    if batch.start is not None and not is_recurrent:
        raise ConfigError(
            "the storage gives sequences, but the actor is not recurrent; set actor.recurrent_net "
            "to 'gru' or 'lstm', or leave storage.sequences out"
        )
    return is_recurrent
