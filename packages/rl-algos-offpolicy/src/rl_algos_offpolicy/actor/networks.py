"""How an off-policy actor's networks are built, from options, spaces and the user's parts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import gymnasium
from gymnasium import spaces
from torch import nn

from rl_algos_offpolicy.actor.config import OffPolicyActorConfig
from rl_algos_offpolicy.critics.critics import Critics
from rl_algos_offpolicy.critics.noisy import NoisyEnsembleMLP
from rl_core.errors import ConfigError
from rl_core.nn.distributions import (
    ActionHead,
    CategoricalHead,
    DeterministicHead,
    SquashedGaussianHead,
    box_size,
)
from rl_core.nn.init import initialize_
from rl_core.nn.layered_head import head_maker
from rl_core.nn.layers import LayerConfig, make_encoder
from rl_core.nn.mlp import MLP, EnsembleMLP
from rl_core.nn.recurrent import RecurrentNet
from rl_core.nn.torso import Torso, check_extractor, feature_size

SpaceExtractor: TypeAlias = Callable[[gymnasium.Space[object]], nn.Module]
"""Makes a module for a space."""

WidthExtractor: TypeAlias = Callable[[int], nn.Module]
"""Makes a module for a number of inputs."""

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
class NetworkBuilder:
    """Builds the policy and the critics of an `OffPolicyActor`, from that actor's arguments.

    Raises:
        ConfigError: when an extractor makes no modules, or leaves an option without effect.
    """

    observation_space: gymnasium.Space[object]
    action_space: gymnasium.Space[object]
    config: OffPolicyActorConfig
    observation_extractor: SpaceExtractor | None
    action_extractor: SpaceExtractor | None
    common_extractor: WidthExtractor | None

    def __post_init__(self) -> None:
        config = self.config
        for name, options in _REPLACED.items():
            make = getattr(self, name)
            if make is None:
                continue
            if isinstance(make, nn.Module) or not callable(make):
                raise ConfigError(
                    f"{name} is a {type(make).__name__}; expected what makes a module, such as "
                    "its class: the policy and each critic get one of their own"
                )
            config.refuse(
                f"has no effect with {name}; leave one of them out", *options, section="actor."
            )
        if self.has_extractors:
            config.refuse(
                "is for the default networks, all of whose layers it concerns; leave it out",
                *("noisy", "critic_layer_norm", "critic_dropout"),
                section="actor.",
            )
        if self.action_extractor is not None and isinstance(self.action_space, spaces.Discrete):
            raise ConfigError(
                "action_extractor needs real actions (Box); critics evaluate all of "
                f"{self.action_space} at once"
            )

    @property
    def has_extractors(self) -> bool:
        """Whether a part of the networks is the user's own."""
        return any(getattr(self, name) is not None for name in _REPLACED)

    def build_policy(self) -> tuple[Torso, ActionHead]:
        """Build the parts of a policy, with the head of its kind."""
        config, space = self.config, self.action_space
        torso = Torso(
            self._encoder("body"),
            core=config.core,
            make_layers=self._own_layers(config.head, "actor.head") or self._mlp,
        )
        head: ActionHead
        if isinstance(space, spaces.Discrete):
            head = CategoricalHead(space, torso.out_features)
        else:
            assert isinstance(space, spaces.Box)
            is_stochastic = config.policy == "stochastic"
            kind = SquashedGaussianHead if is_stochastic else DeterministicHead
            head = kind(space, torso.out_features)
        return torso, initialize_(head, config.initial_weights)

    def build_critics(self) -> Critics:
        """Build the critics, drawing the weights of part after part."""
        config, space, num_critics = self.config, self.action_space, self.config.num_critics
        num_encoders = 1 if self.observation_extractor is None else num_critics
        body = "body" if config.critic_body is None else "critic_body"
        encoders = [self._encoder(body) for _ in range(num_encoders)]
        action_encoders = []
        if self.action_extractor is not None:
            action_encoders = [self.action_extractor(space) for _ in range(num_critics)]
        width, num_outputs = feature_size(encoders[0]), 1
        if isinstance(space, spaces.Box):
            width += feature_size(action_encoders[0]) if action_encoders else box_size(space)
        elif isinstance(space, spaces.Discrete):
            num_outputs = int(space.n)
        torso, core, hidden_sizes = None, None, config.critic_widths
        if config.is_recurrent or self.has_extractors or config.has_layered_critics:
            torso, hidden_sizes = self._critic_torso(width), ()
            width = feature_size(torso[0] if isinstance(torso, nn.ModuleList) else torso)
        of_core = config.core
        if of_core.kind != "none":
            core = RecurrentNet(
                of_core.kind, width, of_core.size, of_core.num_layers, num_members=num_critics
            )
            width = core.out_features
        returns = config.returns
        per_action = 1 if returns is None else returns.num_outputs
        return Critics(
            encoders,
            self._critic_head(width, hidden_sizes, num_outputs * per_action),
            self._critic_head(width, hidden_sizes, per_action) if config.dueling else None,
            torso=torso,
            core=core,
            takes_action=isinstance(space, spaces.Box),
            action_encoders=action_encoders,
            returns=returns,
        )

    def _critic_torso(self, width: int) -> EnsembleMLP | nn.ModuleList:
        config = self.config
        if config.critic_head is None and config.has_layered_critics:
            make = self._own_layers(config.head, "actor.head")
        else:
            make = self._own_layers(config.critic_head, "actor.critic_head")
        if make is not None:
            return nn.ModuleList(make(width) for _ in range(config.num_critics))
        sizes = config.num_critics, width, config.critic_widths, None
        return EnsembleMLP(*sizes, activation=config.activation, init=config.initial_weights)

    def _critic_head(
        self, width: int, hidden_sizes: tuple[int, ...], out_features: int
    ) -> EnsembleMLP | NoisyEnsembleMLP:
        config = self.config
        sizes = config.num_critics, width, hidden_sizes, out_features
        if config.sigma is not None:
            return NoisyEnsembleMLP(
                *sizes, activation=config.activation, initial_sigma=config.sigma
            )
        return EnsembleMLP(
            *sizes,
            activation=config.activation,
            layer_norm=config.critic_layer_norm,
            dropout=config.critic_dropout,
            init=config.initial_weights,
        )

    def _own_layers(self, head: tuple[LayerConfig, ...] | None, path: str) -> WidthExtractor | None:
        """Return what makes layers that the user or a config gives; None takes the default."""
        if self.common_extractor is not None:
            return self.common_extractor
        make = head_maker(head, path)
        init = self.config.initial_weights
        return None if make is None else lambda width: initialize_(make(width), init)

    def _mlp(self, width: int) -> nn.Module:
        config = self.config
        layers = MLP(width, config.hidden_sizes, activation=config.activation)
        return initialize_(layers, config.initial_weights)

    def _encoder(self, option: str) -> nn.Module:
        config = self.config
        if self.observation_extractor is not None:
            extractor = self.observation_extractor(self.observation_space)
            return check_extractor(extractor, self.observation_space, (2,))
        encoder = make_encoder(
            self.observation_space,
            getattr(config, option),
            normalize=config.normalize_observations,
            image_features=config.image_features,
            path=f"actor.{option}",
        )
        return initialize_(encoder, config.initial_weights)
