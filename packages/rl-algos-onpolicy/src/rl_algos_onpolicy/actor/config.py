"""Which networks an `OnPolicyActor` has, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, get_args

import gymnasium

from rl_algos_onpolicy.actor.networks import check_networks
from rl_core.config import check_choice, check_owners, check_ranges
from rl_core.errors import ConfigError
from rl_core.nn.encoder import check_encoder_options
from rl_core.nn.layered_head import Memory, head_memory
from rl_core.nn.layers import LayerConfig
from rl_core.nn.mlp import Activation
from rl_core.nn.torso import MemoryKind

_OWNERS = {
    "recurrent_hidden_size": ("recurrent_net", ("gru", "lstm")),
    "recurrent_layers": ("recurrent_net", ("gru", "lstm")),
}
"""Which option with which value each other option belongs to."""

_OF_REAL_ACTIONS = ("squash_actions", "state_dependent_std", "initial_log_std")


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyActorConfig:
    """The networks of an `OnPolicyActor`.

    Attributes:
        hidden_sizes: widths of the policy's layers.
        value_hidden_sizes: widths of the value function's layers; None takes ``hidden_sizes``.
        activation: after each hidden layer.
        body: layers as data in the place of the encoder, see `rl_core.nn.layers`.
        head: layers as data in the place of ``hidden_sizes``; the last may be ``GRU`` or ``LSTM``
            with ``hidden_size`` and ``num_layers``, then ``ActionLinear``, the output that is
            there in any case.
        value_body: the value function's; None takes layers like the policy's.
        value_head: the value function's; None takes layers like the policy's.
        share_body: one body for both, instead of one each.
        shared_policy_value_network: one trunk for both, instead of one each.
        recurrent_net: memory after the layers.
        recurrent_hidden_size: its size; None takes 64.
        recurrent_layers: how many of its layers are stacked; None takes 1.
        normalize_observations: vectors by running statistics, refreshed once per update.
        image_features: width of each image's features.
        squash_actions: tanh-squashed Gaussian scaled to the bounds, instead of a clipped one.
        state_dependent_std: the policy's spread is an output of the network, as that of a squashed
            Gaussian is in any case.
        intrinsic_value: a second value function for intrinsic rewards, on the same features.
        initial_log_std: where the spread starts, its logarithm; from -20 to 2 where the spread is
            an output.

    Raises:
        ConfigError: when options contradict each other.
    """

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "head": ("hidden_sizes", "activation", "value_hidden_sizes"),
        "value_head": ("value_hidden_sizes",),
        "share_body": ("value_body",),
        "shared_policy_value_network": (
            "value_body",
            "value_head",
            "value_hidden_sizes",
            "share_body",
        ),
        "squash_actions": ("state_dependent_std",),
    }

    hidden_sizes: tuple[int, ...] = (64, 64)
    value_hidden_sizes: tuple[int, ...] | None = None
    activation: Activation = "tanh"
    body: tuple[LayerConfig, ...] | None = None
    head: tuple[LayerConfig, ...] | None = None
    value_body: tuple[LayerConfig, ...] | None = None
    value_head: tuple[LayerConfig, ...] | None = None
    share_body: bool = False
    shared_policy_value_network: bool = False
    recurrent_net: MemoryKind = "none"
    recurrent_hidden_size: int | None = None
    recurrent_layers: int | None = None
    normalize_observations: bool = False
    image_features: int = 512
    squash_actions: bool = False
    state_dependent_std: bool = False
    initial_log_std: float = 0.0
    intrinsic_value: bool = False

    def __post_init__(self) -> None:
        check_networks(self)
        check_choice(self, "recurrent_net", get_args(MemoryKind))
        check_ranges(
            self,
            counts=("image_features", "recurrent_hidden_size", "recurrent_layers"),
            widths=("hidden_sizes", "value_hidden_sizes"),
        )
        check_owners(self, _OWNERS)

    @property
    def memory(self) -> Memory:
        """What remembers."""
        return head_memory(self.head, "actor.head") or Memory(
            self.recurrent_net, self.recurrent_hidden_size or 64, self.recurrent_layers or 1
        )


def check_action_options(
    config: OnPolicyActorConfig, action_space: gymnasium.Space[object]
) -> None:
    """Refuse options of real actions where actions are not.

    Raises:
        ConfigError: naming the option.
    """
    if isinstance(action_space, gymnasium.spaces.Box):
        return
    defaults = OnPolicyActorConfig()
    for option in _OF_REAL_ACTIONS:
        if getattr(config, option) != getattr(defaults, option):
            raise ConfigError(
                f"actor.{option} is for real actions (Box) and has no effect with {action_space}; "
                "leave it out"
            )


def check_observation_options(
    config: OnPolicyActorConfig, observation_space: gymnasium.Space[object]
) -> None:
    """Refuse options of encoders that the observations leave without effect.

    Raises:
        ConfigError: naming the option.
    """
    check_encoder_options(
        observation_space,
        normalize=config.normalize_observations,
        sizes_images=config.image_features != OnPolicyActorConfig().image_features,
        has_body=config.body is not None,
    )


def check_extractor(config: OnPolicyActorConfig) -> None:
    """Refuse options that a user's own feature extractor leaves without effect.

    Raises:
        ConfigError: naming the option.
    """
    defaults = OnPolicyActorConfig()
    for option in ("body", "value_body", "share_body", "normalize_observations", "image_features"):
        if getattr(config, option) != getattr(defaults, option):
            raise ConfigError(
                f"actor.{option} has no effect with feature_extractor; leave one of them out"
            )
