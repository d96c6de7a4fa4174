"""The actor of off-policy algorithms: critics, and a policy where there is one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_algos_offpolicy.composed_critics import ComposedCritics
from rl_algos_offpolicy.critic_config import CriticConfig
from rl_algos_offpolicy.critics import Critics, of_action
from rl_algos_offpolicy.memory import Remembered, Seen
from rl_algos_offpolicy.policy import Policy
from rl_core.actor import Actor
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import Deterministic, Distribution, draw_noise
from rl_core.nn.encoder import ACTION_MASK_KEY, ObservationEncoder
from rl_core.nn.heads import ActionHead, CategoricalHead, DeterministicHead, SquashedGaussianHead
from rl_core.nn.mlp import Activation
from rl_core.nn.trunk import MemoryKind, Trunk
from rl_core.ranges import check_choice, check_ranges
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State

PolicyKind = Literal["stochastic", "deterministic", "greedy"]
"""How actions are chosen: sampled, by a function of the observation, or by the first critic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyActorConfig(CriticConfig):
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
        memory: recurrent network after the layers, in the policy and in each critic.
        memory_size: its hidden size.
        memory_layers: how many of its layers are stacked.

    Raises:
        ConfigError: when a value is out of range, or an option belongs to what is not chosen.
    """

    policy: PolicyKind = "stochastic"
    hidden_sizes: tuple[int, ...] = (256, 256)
    critic_hidden_sizes: tuple[int, ...] | None = None
    activation: Activation = "relu"
    num_critics: int = 2
    dueling: bool = False
    normalize_observations: bool = False
    image_features: int = 512
    memory: MemoryKind = "none"
    memory_size: int = 64
    memory_layers: int = 1

    def __post_init__(self) -> None:
        CriticConfig.__post_init__(self)
        check_choice(self, "policy", get_args(PolicyKind))
        check_choice(self, "memory", get_args(MemoryKind))
        check_ranges(self, counts=("num_critics", "image_features", "memory_size", "memory_layers"))
        for option, off in (("distribution", "none"), ("noisy", False)):
            if self.policy != "greedy" and getattr(self, option) != off:
                raise ConfigError(
                    f"{option}={getattr(self, option)!r} needs the policy 'greedy', got "
                    f"'{self.policy}'"
                )
        if self.noisy and self.is_recurrent:
            raise ConfigError("noisy does not go with memory; set one of them off")
        for option, usual in (("memory_size", 64), ("memory_layers", 1)):
            if not self.is_recurrent and getattr(self, option) != usual:
                raise ConfigError(
                    f"{option}={getattr(self, option)} has no effect with memory='none'; set "
                    f"memory to 'gru' or 'lstm', or leave {option} out"
                )

    @property
    def is_recurrent(self) -> bool:
        """Whether the networks have memories, and learn from sequences."""
        return self.memory != "none"


class OffPolicyActor(Actor):
    """Critics, and a policy where there is one; they share no network.

    The actor's own actions are in [-1, 1] where they are real numbers, and scaled to the bounds
    for the environment.

    A policy is an observation's encoder, layers, a memory and an action head. A critic is encoders
    of the observation and of a real action side by side, layers, a memory and a linear output. The
    encoders and the layers may be the user's: what makes them is called once for the policy and
    once for each critic, so that none is shared. What it makes is an ``nn.Module`` with an integer
    ``out_features`` that takes any batch axes. The class of a module is such a maker.

    A critic's memory sees the actions that were taken. While acting, the states of policy and
    critics advance together, and storages keep both.

    Args:
        observation_space: vectors, images, categories, or a dict of them.
        action_space: Discrete, or a Box with finite bounds.
        config: the networks.
        observation_extractor: from the observation space to the module in the default encoder's
            place.
        action_extractor: from the action space to a module for real actions, which otherwise go
            into the critics as they are.
        common_extractor: from a width to the module in the place of the layers.

    Attributes:
        critics: the action-value functions.
        policy: what chooses actions; None when it is greedy.

    Raises:
        SpaceError: for a space that it cannot do.
        ConfigError: when the kind of policy does not fit the action space, or options contradict
            an extractor.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        config: OffPolicyActorConfig | None = None,
        *,
        observation_extractor: Callable[[gymnasium.Space[object]], nn.Module] | None = None,
        action_extractor: Callable[[gymnasium.Space[object]], nn.Module] | None = None,
        common_extractor: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.config = config = config or OffPolicyActorConfig()
        _check_spaces(observation_space, action_space, config)
        self._observation_extractor = observation_extractor
        self._action_extractor = action_extractor
        self._common_extractor = common_extractor
        self._check_extractors()
        self.policy = None if config.policy == "greedy" else self._new_policy()
        self.critics: Critics | ComposedCritics = (
            self._new_composed_critics()
            if config.is_recurrent or self.uses_objects
            else self._new_critics()
        )

    @property
    def uses_objects(self) -> bool:
        """Whether a part of the networks is the user's own."""
        makers = (self._observation_extractor, self._action_extractor, self._common_extractor)
        return any(make is not None for make in makers)

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """Sizes of the policy's memory and of all critics' together."""
        if not isinstance(self.critics, ComposedCritics) or not self.critics.is_recurrent:
            return {}
        sizes = {} if self.policy is None else {"policy": self.policy.trunk.state_size}
        return {**sizes, "critics": self.critics.state_size}

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
        """Return what the first critic thinks of all discrete actions, `(*batch, n)`.

        Also the recurrent state after each step; the arguments are those of `distribution`.
        """
        if not self.is_recurrent:
            values: Tensor = self.critics(observation)[0]
            return values, {}
        assert isinstance(self.critics, ComposedCritics)
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
        """Let the critics' memories see what was done; see `Actor.remember_action`."""
        if self.policy is None or not self.is_recurrent:
            return after
        assert isinstance(self.critics, ComposedCritics)
        assert episode_start is not None
        features = self.critics.encode(observation)
        states = self.critics.advance(features, action, before["critics"], episode_start)
        return {**after, "critics": states}

    def q_values(self, observation: Seen, action: Tensor | None, state: State) -> Tensor:
        """Return the values of given actions, or of all discrete ones; see `Actor.q_values`.

        Args:
            observation: with any batch axes, also as the critics remember it.
            action: shape `(*batch, ...)`, or None.
            state: each `(*batch, S)`; not looked at by critics without memory, or where
                ``observation`` holds their state.
        """
        if self.is_recurrent and not isinstance(observation, Remembered):
            assert isinstance(self.critics, ComposedCritics)
            observation = Remembered(self.critics.encode(observation), state["critics"])
        values: Tensor = self.critics(observation, action)
        return values if action is None or not self.is_discrete else of_action(values, action)

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

    @property
    def _critic_hidden_sizes(self) -> tuple[int, ...]:
        sizes = self.config.critic_hidden_sizes
        return self.config.hidden_sizes if sizes is None else sizes

    def _new_encoder(self) -> nn.Module:
        if self._observation_extractor is not None:
            return self._observation_extractor(self.observation_space)
        return ObservationEncoder(
            self.observation_space,
            normalize=self.config.normalize_observations,
            image_features=self.config.image_features,
        )

    def _new_policy(self) -> Policy:
        config, space = self.config, self.action_space
        trunk = Trunk(
            self._new_encoder(),
            config.hidden_sizes,
            config.activation,
            memory=config.memory,
            memory_size=config.memory_size,
            memory_layers=config.memory_layers,
            make_layers=self._common_extractor,
        )
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
        return Critics(
            self._new_encoder(),
            num_critics=config.num_critics,
            hidden_sizes=self._critic_hidden_sizes,
            activation=config.activation,
            action_size=0 if self.is_discrete else self.action_spec.shape[0],
            num_actions=self.num_actions if self.is_discrete else 1,
            dueling=config.dueling,
            returns=config.returns,
            noisy_sigma=config.sigma,
        )

    def _new_composed_critics(self) -> ComposedCritics:
        config, num_critics = self.config, self.config.num_critics
        num_encoders = 1 if self._observation_extractor is None else num_critics
        make_action_encoder = self._action_extractor
        return ComposedCritics(
            [self._new_encoder() for _ in range(num_encoders)],
            []
            if make_action_encoder is None
            else [make_action_encoder(self.action_space) for _ in range(num_critics)],
            num_critics=num_critics,
            hidden_sizes=self._critic_hidden_sizes,
            activation=config.activation,
            make_layers=self._common_extractor,
            memory=None if config.memory == "none" else config.memory,
            memory_size=config.memory_size,
            memory_layers=config.memory_layers,
            action_size=0 if self.is_discrete else self.action_spec.shape[0],
            num_actions=self.num_actions if self.is_discrete else 1,
            dueling=config.dueling,
            returns=config.returns,
        )

    def _check_extractors(self) -> None:
        """Make sure that extractors are makers of modules and leave no option without effect."""
        config, defaults = self.config, OffPolicyActorConfig()
        replaced = {
            "observation_extractor": ("normalize_observations", "image_features"),
            "action_extractor": (),
            "common_extractor": ("hidden_sizes", "critic_hidden_sizes"),
        }
        for name, options in replaced.items():
            maker = getattr(self, f"_{name}")
            if maker is None:
                continue
            if isinstance(maker, nn.Module) or not callable(maker):
                raise ConfigError(
                    f"{name} is a {type(maker).__name__}; expected what makes a module, such as "
                    "its class: the policy and each critic get one of their own"
                )
            for option in options:
                if getattr(config, option) != getattr(defaults, option):
                    raise ConfigError(
                        f"actor.{option} has no effect with {name}; leave one of them out"
                    )
        if config.noisy and self.uses_objects:
            raise ConfigError(
                "actor.noisy is for the default networks, all of whose layers have noisy weights; "
                "set it off"
            )
        if self._action_extractor is not None and self.is_discrete:
            raise ConfigError(
                "action_extractor needs real actions (Box); critics evaluate all of "
                f"{self.action_space} at once"
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
