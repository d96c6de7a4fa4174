"""The actor of off-policy algorithms: critics, and a policy where there is one."""

from dataclasses import dataclass
from typing import Literal, get_args

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy.critics import Critics
from rl_core.actor import Actor
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import Deterministic, Distribution, draw_noise
from rl_core.nn.encoder import ACTION_MASK_KEY, ObservationEncoder
from rl_core.nn.heads import ActionHead, CategoricalHead, DeterministicHead, SquashedGaussianHead
from rl_core.nn.mlp import Activation
from rl_core.nn.trunk import Trunk
from rl_core.ranges import check_choice, check_ranges
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State

PolicyKind = Literal["stochastic", "deterministic", "greedy"]
"""How actions are chosen: sampled, by a function of the observation, or by the first critic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyActorConfig:
    """The networks of an `OffPolicyActor`.

    Attributes:
        policy: ``"stochastic"`` samples a squashed Gaussian (Box) or a categorical distribution
            (Discrete); ``"deterministic"`` is a function with outputs in [-1, 1] (Box);
            ``"greedy"`` has no network and takes the action of highest value (Discrete).
        hidden_sizes: widths of the policy's layers, and of the critics'.
        critic_hidden_sizes: widths of the critics' layers; None takes ``hidden_sizes``.
        activation: after each hidden layer.
        num_critics: how many action-value functions.
        dueling: value and advantages as streams of their own (Discrete).
        normalize_observations: by running statistics, refreshed after each update.
        image_features: width of each image's features.

    Raises:
        ConfigError: when a value is out of range.
    """

    policy: PolicyKind = "stochastic"
    hidden_sizes: tuple[int, ...] = (256, 256)
    critic_hidden_sizes: tuple[int, ...] | None = None
    activation: Activation = "relu"
    num_critics: int = 2
    dueling: bool = False
    normalize_observations: bool = False
    image_features: int = 512

    def __post_init__(self) -> None:
        check_choice(self, "policy", get_args(PolicyKind))
        check_ranges(self, counts=("num_critics", "image_features"))


class Policy(nn.Module):
    """A trunk and an action head.

    Args:
        trunk: features of the observation.
        head: distribution over actions.
    """

    def __init__(self, trunk: Trunk, head: ActionHead) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head

    def forward(self, observation: Observation) -> Distribution:
        """Return the distribution over actions at observations with any batch axes."""
        features, _ = self.trunk(observation, None, None)
        distribution: Distribution = self.head(features)
        return distribution


class OffPolicyActor(Actor):
    """Critics, and a policy where there is one; they share no network.

    The actor's own actions are in [-1, 1] where they are real numbers, and scaled to the bounds
    for the environment.

    Args:
        observation_space: vectors, images, categories, or a dict of them.
        action_space: Discrete, or a Box with finite bounds.
        config: the networks.

    Attributes:
        critics: the action-value functions.
        policy: what chooses actions; None when it is greedy.

    Raises:
        SpaceError: for a space that it cannot do.
        ConfigError: when the kind of policy does not fit the action space.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        config: OffPolicyActorConfig | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.config = config = config or OffPolicyActorConfig()
        _check_spaces(observation_space, action_space, config)
        self.policy = None if config.policy == "greedy" else self._new_policy()
        self.critics = self._new_critics()

    @property
    def is_discrete(self) -> bool:
        """Whether actions are categories, all of which the critics evaluate at once."""
        return isinstance(self.action_space, spaces.Discrete)

    @property
    def num_actions(self) -> int:
        """How many actions there are, when they are categories."""
        assert isinstance(self.action_space, spaces.Discrete)
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
            return Deterministic(self.critics(observation)[0].argmax(-1)), {}
        distribution: Distribution = self.policy(observation)
        return distribution, {}

    def q_values(self, observation: Observation, action: Tensor | None, state: State) -> Tensor:
        """Return the values of given actions, or of all discrete ones; see `Actor.q_values`."""
        values: Tensor = self.critics(observation, action)
        if action is None or not self.is_discrete:
            return values
        index = action.expand(values.shape[:-1]).unsqueeze(-1)
        return values.gather(-1, index).squeeze(-1)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Scale to the bounds, or count from the space's first category."""
        if self.policy is not None:
            return self.policy.head.to_env_action(action)
        assert isinstance(self.action_space, spaces.Discrete)
        return action + int(self.action_space.start)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Undo `to_env_action`, for actions of a data set."""
        if self.policy is not None:
            return self.policy.head.from_env_action(env_action)
        assert isinstance(self.action_space, spaces.Discrete)
        return env_action.long() - int(self.action_space.start)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what sampling from the policy needs."""
        if self.policy is None:
            return torch.zeros(*batch_shape, 0, device=self.device)
        head = self.policy.head
        return draw_noise(
            head.noise_kind,
            (*batch_shape, *head.noise_shape),
            generator,
            device=self.device,
            dtype=torch.float32,
        )

    def random_actions(self, num_envs: int, generator: torch.Generator) -> Tensor:
        """Draw categories, or numbers in [-1, 1], uniformly."""
        device = self.device
        if self.is_discrete:
            return torch.randint(self.num_actions, (num_envs,), generator=generator, device=device)
        shape = (num_envs, *self.action_spec.shape)
        return 2.0 * torch.rand(shape, generator=generator, device=device) - 1.0

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Refresh the running statistics of the policy and of the critics."""
        self.critics.update_normalization(observation, mask)
        if self.policy is not None:
            self.policy.trunk.update_normalization(observation, mask)

    @property
    def normalizes_observations(self) -> bool:
        """Whether the networks keep running statistics."""
        return self.config.normalize_observations

    def _new_encoder(self) -> ObservationEncoder:
        return ObservationEncoder(
            self.observation_space,
            normalize=self.config.normalize_observations,
            image_features=self.config.image_features,
        )

    def _new_policy(self) -> Policy:
        config, space = self.config, self.action_space
        trunk = Trunk(self._new_encoder(), config.hidden_sizes, config.activation)
        head: ActionHead
        if isinstance(space, spaces.Discrete):
            head = CategoricalHead(space, trunk.out_features)
        else:
            assert isinstance(space, spaces.Box)
            head = (
                SquashedGaussianHead(space, trunk.out_features)
                if config.policy == "stochastic"
                else DeterministicHead(space, trunk.out_features)
            )
        return Policy(trunk, head)

    def _new_critics(self) -> Critics:
        config = self.config
        sizes = config.critic_hidden_sizes
        return Critics(
            self._new_encoder(),
            num_critics=config.num_critics,
            hidden_sizes=config.hidden_sizes if sizes is None else sizes,
            activation=config.activation,
            action_size=0 if self.is_discrete else self.action_spec.shape[0],
            num_actions=self.num_actions if self.is_discrete else 1,
            dueling=config.dueling,
        )


def _check_spaces(
    observation_space: gymnasium.Space[object],
    action_space: gymnasium.Space[object],
    config: OffPolicyActorConfig,
) -> None:
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise SpaceError(
            f"action space {action_space} is not supported; expected Discrete, or a Box with "
            "finite bounds"
        )
    is_discrete = isinstance(action_space, spaces.Discrete)
    if is_discrete and config.policy == "deterministic":
        raise ConfigError(
            "actor.policy 'deterministic' needs real actions (Box); use 'greedy' or 'stochastic' "
            f"for {action_space}"
        )
    if not is_discrete and config.policy == "greedy":
        raise ConfigError(
            "actor.policy 'greedy' needs Discrete actions; use 'deterministic' or 'stochastic' "
            f"for {action_space}"
        )
    if config.dueling and not is_discrete:
        raise ConfigError("actor.dueling needs Discrete actions, whose advantages it compares")
    if isinstance(observation_space, spaces.Dict) and ACTION_MASK_KEY in observation_space.spaces:
        raise SpaceError(
            f"off-policy actors do not take the observation '{ACTION_MASK_KEY}'; leave it out"
        )
