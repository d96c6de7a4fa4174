"""What an off-policy actor's networks are made from: options, spaces and the user's own parts."""

from collections.abc import Callable
from dataclasses import dataclass

import gymnasium
from gymnasium import spaces
from torch import nn

from rl_algos_offpolicy.actor.config import OffPolicyActorConfig
from rl_algos_offpolicy.actor.policy import Policy
from rl_algos_offpolicy.critics.composed import ComposedCritics
from rl_algos_offpolicy.critics.critics import Critics
from rl_core.errors import ConfigError
from rl_core.nn.heads import ActionHead, CategoricalHead, DeterministicHead, SquashedGaussianHead
from rl_core.nn.init import fan_in_uniform_
from rl_core.nn.layered_head import head_maker
from rl_core.nn.layers import LayerConfig, make_encoder
from rl_core.nn.mlp import MLP
from rl_core.nn.torso import Torso

_REPLACED = {
    "observation_extractor": ("normalize_observations", "image_features", "body", "critic_body"),
    "action_extractor": (),
    "common_extractor": (
        "hidden_sizes",
        "critic_hidden_sizes",
        "activation",
        "head",
        "critic_head",
    ),
}
"""Which options each extractor leaves without effect."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Extractors:
    """What makes the user's own parts; see `OffPolicyActor`. None is for the default part."""

    observation_extractor: Callable[[gymnasium.Space[object]], nn.Module] | None = None
    action_extractor: Callable[[gymnasium.Space[object]], nn.Module] | None = None
    common_extractor: Callable[[int], nn.Module] | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in _REPLACED)

    def check(self, config: OffPolicyActorConfig, action_space: gymnasium.Space[object]) -> None:
        """Make sure that these are makers of modules, and leave no option without effect.

        Raises:
            ConfigError: naming the extractor.
        """
        defaults = OffPolicyActorConfig()
        for name, options in _REPLACED.items():
            maker = getattr(self, name)
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
        for option in ("noisy", "critic_layer_norm", "critic_dropout"):
            if getattr(config, option) and self:
                raise ConfigError(
                    f"actor.{option} is for the default networks, all of whose layers it concerns; "
                    "set it off"
                )
        if self.action_extractor is not None and isinstance(action_space, spaces.Discrete):
            raise ConfigError(
                "action_extractor needs real actions (Box); critics evaluate all of "
                f"{action_space} at once"
            )


class NetworkMaker:
    """Makes the policy and the critics of one actor.

    Args:
        observation_space: of the actor.
        action_space: of the actor.
        config: the networks.
        extractors: the user's own parts.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        config: OffPolicyActorConfig,
        extractors: Extractors,
    ) -> None:
        self._observation_space = observation_space
        self._action_space = action_space
        self._config = config
        self._extractors = extractors

    def policy(self) -> Policy:
        """Make a policy with the head of its kind."""
        config, space = self._config, self._action_space
        memory = config.memory
        trunk = Torso(
            self._encoder("body"),
            memory=memory.kind,
            memory_size=memory.size,
            memory_layers=memory.num_layers,
            make_layers=self._layers(config.head, "actor.head") or self._mlp,
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

    def critics(self, action_size: int) -> Critics | ComposedCritics:
        """Make the critics.

        Args:
            action_size: width of a real action; 0 for discrete actions.
        """
        config = self._config
        if config.is_recurrent or self._extractors or config.has_layered_critics:
            return self._composed_critics(action_size)
        return Critics(
            self._encoder(self._critic_body),
            num_critics=config.num_critics,
            hidden_sizes=config.critic_widths,
            activation=config.activation,
            action_size=action_size,
            num_actions=self._num_actions,
            dueling=config.dueling,
            returns=config.returns,
            noisy_sigma=config.sigma,
            layer_norm=config.critic_layer_norm,
            dropout=config.critic_dropout,
            start=config.initial_weights,
        )

    def _composed_critics(self, action_size: int) -> ComposedCritics:
        config, extractors = self._config, self._extractors
        num_critics = config.num_critics
        num_encoders = 1 if extractors.observation_extractor is None else num_critics
        make_action_encoder = extractors.action_extractor
        memory = config.memory
        body = self._critic_body
        return ComposedCritics(
            [self._encoder(body) for _ in range(num_encoders)],
            []
            if make_action_encoder is None
            else [make_action_encoder(self._action_space) for _ in range(num_critics)],
            num_critics=num_critics,
            hidden_sizes=config.critic_widths,
            activation=config.activation,
            make_layers=self._critic_layers(),
            memory=None if memory.kind == "none" else memory.kind,
            memory_size=memory.size,
            memory_layers=memory.num_layers,
            action_size=action_size,
            num_actions=self._num_actions,
            dueling=config.dueling,
            returns=config.returns,
            start=config.initial_weights,
        )

    @property
    def _num_actions(self) -> int:
        space = self._action_space
        return int(space.n) if isinstance(space, spaces.Discrete) else 1

    def _critic_layers(self) -> Callable[[int], nn.Module] | None:
        config = self._config
        if config.critic_head is None and config.has_layered_critics:
            return self._layers(config.head, "actor.head")
        return self._layers(config.critic_head, "actor.critic_head")

    def _layers(
        self, head: tuple[LayerConfig, ...] | None, path: str
    ) -> Callable[[int], nn.Module] | None:
        if self._extractors.common_extractor is not None:
            return self._extractors.common_extractor
        make = head_maker(head, path)
        return None if make is None else lambda width: self._started(make(width))

    def _mlp(self, width: int) -> nn.Module:
        config = self._config
        return self._started(MLP(width, config.hidden_sizes, activation=config.activation))

    def _started(self, module: nn.Module) -> nn.Module:
        """Start layers of the project's own, which are made orthogonal, as the options say."""
        is_uniform = self._config.initial_weights == "uniform"
        return fan_in_uniform_(module) if is_uniform else module

    @property
    def _critic_body(self) -> str:
        return "body" if self._config.critic_body is None else "critic_body"

    def _encoder(self, option: str) -> nn.Module:
        config, space = self._config, self._observation_space
        if self._extractors.observation_extractor is not None:
            return self._extractors.observation_extractor(space)
        encoder = make_encoder(
            space,
            getattr(config, option),
            normalize=config.normalize_observations,
            image_features=config.image_features,
            path=f"actor.{option}",
        )
        return self._started(encoder)
