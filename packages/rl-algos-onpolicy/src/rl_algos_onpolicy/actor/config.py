"""Which networks an `OnPolicyActor` has, as data."""

from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import gymnasium

from rl_core.config import Config, Count, Needs, Widths, Without
from rl_core.errors import ConfigError
from rl_core.nn.init import Initialization
from rl_core.nn.layered_head import head_core
from rl_core.nn.layers import LayerConfig, check_layers
from rl_core.nn.mlp import Activation
from rl_core.nn.torso import CoreConfig, CoreKind, check_encoder_options
from rl_core.spaces import HybridSpace

Layers: TypeAlias = tuple[LayerConfig, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyActorConfig(Config):
    """The networks of an `OnPolicyActor`.

    Attributes:
        hidden_sizes: widths of the policy's layers.
        value_hidden_sizes: widths of the value function's layers; None takes ``hidden_sizes``.
        activation: activation after each hidden layer.
        body: layers as data in the place of the encoder, each a table with ``func`` and ``kwargs``.
        head: layers as data in the place of ``hidden_sizes``; the last may be ``GRU`` or ``LSTM``
            with ``hidden_size`` and ``num_layers``, then ``ActionLinear``, the output that is
            there in any case.
        value_body: layers as data in the place of the value function's encoder; None takes layers
            like those of ``body``.
        value_head: layers as data in the place of ``value_hidden_sizes``; None takes layers like
            those of ``head``.
        initial_weights: initial weights of encoders, layers, recurrent core and outputs:
            ``"orthogonal"`` has zero biases, and starts the policy's output near 0; ``"uniform"``
            draws weights and biases as ``nn.Linear`` and ``nn.GRU`` do. The user's own feature
            extractor stays as it is.
        share_body: share one encoder between policy and value function.
        shared_policy_value_network: share the whole torso (encoder, layers and recurrent core)
            between policy and value function.
        recurrent_net: kind of the recurrent core; ``none`` makes feed-forward networks.
        recurrent_hidden_size: hidden size of the recurrent core; None takes 64.
        recurrent_layers: number of stacked layers in the recurrent core; None takes 1.
        recurrent_first: put the recurrent core before the layers of ``hidden_sizes`` or ``head``,
            instead of after them.
        normalize_observations: normalize vectors by running statistics, which are updated once per
            update.
        image_features: number of features of each image.
        squash_actions: squash a Gaussian by tanh and scale it to the bounds of the actions, instead
            of clipping it.
        state_dependent_std: make the policy's standard deviation an output of the network; that of
            a squashed Gaussian always is.
        intrinsic_value: learn a second value function, for intrinsic rewards, on the same features.
        initial_log_std: initial logarithm of the policy's standard deviation; from -20 to 2 where
            it is an output of the network.

    Raises:
        ConfigError: when options contradict each other.
    """

    hidden_sizes: Annotated[Widths, Without("head")] = (64, 64)
    value_hidden_sizes: Annotated[
        Widths | None, Without("head", "value_head", "shared_policy_value_network")
    ] = None
    activation: Annotated[Activation, Without("head")] = "tanh"
    body: Layers | None = None
    head: Layers | None = None
    value_body: Annotated[Layers | None, Without("share_body", "shared_policy_value_network")] = (
        None
    )
    value_head: Annotated[Layers | None, Without("shared_policy_value_network")] = None
    initial_weights: Initialization = "orthogonal"
    share_body: Annotated[bool, Without("shared_policy_value_network")] = False
    shared_policy_value_network: bool = False
    recurrent_net: CoreKind = "none"
    recurrent_hidden_size: Annotated[Count | None, Needs("recurrent_net", "gru", "lstm")] = None
    recurrent_layers: Annotated[Count | None, Needs("recurrent_net", "gru", "lstm")] = None
    recurrent_first: Annotated[bool, Needs("recurrent_net", "gru", "lstm")] = False
    normalize_observations: bool = False
    image_features: Count = 512
    squash_actions: bool = False
    state_dependent_std: Annotated[bool, Without("squash_actions")] = False
    initial_log_std: float = 0.0
    intrinsic_value: bool = False

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        for path in ("body", "value_body", "value_head"):
            check_layers(getattr(self, path), path)
        if head_core(self.head, "head") is not None and self.recurrent_net != "none":
            raise ConfigError("head ends with a recurrent core of its own; leave recurrent_net out")

    @property
    def core(self) -> CoreConfig:
        """The recurrent core of policy and value function."""
        core = head_core(self.head, "actor.head") or CoreConfig(
            self.recurrent_net,
            self.recurrent_hidden_size or 64,
            self.recurrent_layers or 1,
            self.recurrent_first,
        )
        return replace(core, init=self.initial_weights)


def check_options(
    config: OnPolicyActorConfig,
    observation_space: gymnasium.Space[object],
    action_space: gymnasium.Space[object],
    *,
    has_extractor: bool,
) -> None:
    """Refuse options that the spaces or the user's own feature extractor leave without effect.

    Raises:
        ConfigError: naming the option.
    """
    if not isinstance(action_space, gymnasium.spaces.Box | HybridSpace):
        config.refuse(
            f"is for real actions (Box) and has no effect with {action_space}; leave it out",
            *("squash_actions", "state_dependent_std", "initial_log_std"),
            section="actor.",
        )
    if has_extractor:
        config.refuse(
            "has no effect with feature_extractor; leave one of them out",
            *("body", "value_body", "share_body", "normalize_observations", "image_features"),
            section="actor.",
        )
        return
    check_encoder_options(observation_space, config, has_body=config.body is not None)
