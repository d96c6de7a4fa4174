"""Which networks an off-policy actor is made of, and for which spaces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import gymnasium
from annotated_types import Ge, Interval
from gymnasium import spaces

from rl_algos_offpolicy.critics.distributional import (
    CategoricalReturns,
    QuantileReturns,
    ReturnDistribution,
)
from rl_core.config import Config, Count, Needs, Positive, Widths, Without
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import box_size
from rl_core.nn.init import Initialization
from rl_core.nn.layered_head import head_core
from rl_core.nn.layers import LayerConfig, check_layers
from rl_core.nn.mlp import Activation
from rl_core.nn.torso import CoreConfig, CoreKind
from rl_core.spaces import ACTION_MASK_KEY, is_bounded

PolicyKind = Literal["stochastic", "deterministic", "greedy"]
"""How actions are chosen: sampled, by a function of the observation, or by the first critic."""

ReturnKind = Literal["none", "categorical", "quantile"]
"""What critics learn of the return: its expectation, probabilities of given returns, quantiles."""

LEARNERS: Mapping[PolicyKind, tuple[str, ...]] = {
    "greedy": ("dqn", "rainbow"),
    "deterministic": ("td3", "ddpg"),
    "stochastic": ("sac", "redq", "droq", "bc"),
}
"""Which algorithms of this package learn each kind of policy, by their registered names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyActorConfig(Config):
    """The networks of an `OffPolicyActor`.

    Attributes:
        policy: ``"stochastic"`` samples a squashed Gaussian (Box) or a categorical distribution
            (Discrete); ``"deterministic"`` is a function with outputs in [-1, 1] (Box);
            ``"greedy"`` has no network and takes the action of highest value (Discrete).
        hidden_sizes: widths of the policy's layers, and of the critics'.
        critic_hidden_sizes: widths of the critics' layers; None takes ``hidden_sizes``.
        critic_layer_norm: normalize the critics' hidden layers, before their activation.
        critic_dropout: probability with which an output of the critics' hidden layers is dropped
            in updates, in [0, 1); for stochastic policies.
        activation: activation after each hidden layer.
        body: layers as data in the place of the encoder, each a table with ``func`` and ``kwargs``.
        head: layers as data in the place of ``hidden_sizes``; the last may be ``GRU`` or ``LSTM``,
            the recurrent core of all networks, with ``hidden_size`` and ``num_layers``, then
            ``ActionLinear``, the output that is there in any case.
        critic_body: layers as data in the place of the critics' encoder; None takes layers like
            those of ``body``.
        critic_head: layers as data in the place of ``critic_hidden_sizes``; None takes layers like
            those of ``head``.
        initial_weights: initial weights of encoders, hidden and output layers: ``"uniform"`` draws
            weights and biases as ``nn.Linear`` does; ``"orthogonal"`` has zero biases, and starts
            the policy's output near 0. Recurrent cores are orthogonal with zero biases in any case,
            and the user's own parts stay as they are.
        num_critics: number of critics (action-value functions).
        dueling: give critics separate streams for the state's value and the actions' advantages
            (Discrete).
        distribution: what the critics of a greedy policy learn of the return: ``none`` its
            expectation, ``categorical`` the probabilities of given returns, ``quantile`` its
            quantiles.
        num_atoms: number of atoms (given returns) of ``categorical``; None takes 51.
        value_range: smallest and largest atom of ``categorical``, in scaled rewards; None takes -10
            and 10.
        num_quantiles: number of quantiles of ``quantile``; None takes 200.
        noisy: explore by noisy weights in all layers of the critics, which a greedy policy follows.
        noisy_sigma: initial size of the noise on the weights, σ₀; None takes 0.5.
        normalize_observations: normalize vectors by running statistics, which are updated once per
            update.
        image_features: number of features of each image.
        recurrent_net: kind of the recurrent core after the layers, in the policy and in each
            critic; ``none`` makes feed-forward networks.
        recurrent_hidden_size: hidden size of each recurrent core; None takes 64.
        recurrent_layers: number of stacked layers in each recurrent core; None takes 1.

    Raises:
        ConfigError: when a value is out of range, or an option belongs to what is not chosen.
    """

    policy: PolicyKind = "stochastic"
    hidden_sizes: Annotated[Widths, Without("head")] = (256, 256)
    critic_hidden_sizes: Annotated[Widths | None, Without("critic_head")] = None
    critic_layer_norm: bool = False
    critic_dropout: Annotated[float, Interval(ge=0, lt=1), Needs("policy", "stochastic")] = 0.0
    activation: Activation = "relu"
    body: tuple[LayerConfig, ...] | None = None
    head: tuple[LayerConfig, ...] | None = None
    critic_body: tuple[LayerConfig, ...] | None = None
    critic_head: tuple[LayerConfig, ...] | None = None
    initial_weights: Initialization = "uniform"
    num_critics: Count = 2
    dueling: bool = False
    distribution: Annotated[ReturnKind, Needs("policy", "greedy")] = "none"
    num_atoms: Annotated[int | None, Ge(2), Needs("distribution", "categorical")] = None
    value_range: Annotated[tuple[float, float] | None, Needs("distribution", "categorical")] = None
    num_quantiles: Annotated[Count | None, Needs("distribution", "quantile")] = None
    noisy: Annotated[bool, Needs("policy", "greedy")] = False
    noisy_sigma: Annotated[Positive | None, Needs("noisy", True)] = None
    normalize_observations: bool = False
    image_features: Count = 512
    recurrent_net: CoreKind = "none"
    recurrent_hidden_size: Annotated[Count | None, Needs("recurrent_net", "gru", "lstm")] = None
    recurrent_layers: Annotated[Count | None, Needs("recurrent_net", "gru", "lstm")] = None

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.value_range is not None and self.value_range[0] >= self.value_range[1]:
            raise ConfigError(
                f"value_range must have the smaller number first, got {self.value_range}"
            )
        for path in ("body", "critic_body", "critic_head"):
            check_layers(getattr(self, path), path)
        if self.policy == "greedy":
            for name in ("hidden_sizes", "body", "head"):
                self.refuse(
                    f"says the same as {name} where the policy is 'greedy'; give {name} alone",
                    f"critic_{name}",
                )
        if head_core(self.head, "head") is not None and self.recurrent_net != "none":
            raise ConfigError("head ends with a recurrent core of its own; leave recurrent_net out")
        of_layers = ("critic_layer_norm", "critic_dropout")
        if self.is_recurrent:
            self.refuse("does not go with recurrent_net; set one of them off", "noisy", *of_layers)
        if self.has_layered_critics:
            self.refuse(
                "is for the critics' default layers, and head or critic_head replaces them; set it "
                "off, or leave that out",
                "noisy",
                *of_layers,
            )
            if self.head is not None:
                self.refuse("has no effect with head; leave one of them out", "activation")
        if not self.critic_widths:
            self.refuse(
                "has no effect on critics without hidden layers; leave it out, or give "
                "hidden_sizes or critic_hidden_sizes",
                *of_layers,
            )
        if self.noisy:
            self.refuse(
                "does not go with noisy, whose layers start uniform; leave one of them out",
                "initial_weights",
            )
            self.refuse("does not go with noisy; leave one of them out", "critic_layer_norm")

    @property
    def critic_widths(self) -> tuple[int, ...]:
        """Widths of the critics' layers."""
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes

    @property
    def has_layered_critics(self) -> bool:
        """Whether the critics' layers are data."""
        takes_head = self.head is not None and self.critic_hidden_sizes is None
        return self.critic_head is not None or takes_head

    @property
    def returns(self) -> ReturnDistribution | None:
        """A new distribution of returns, or None where critics learn expected returns."""
        if self.distribution == "categorical":
            low, high = (-10.0, 10.0) if self.value_range is None else self.value_range
            return CategoricalReturns(51 if self.num_atoms is None else self.num_atoms, low, high)
        if self.distribution == "quantile":
            return QuantileReturns(200 if self.num_quantiles is None else self.num_quantiles)
        return None

    @property
    def sigma(self) -> float | None:
        """σ₀ of noisy layers, or None where they are plain."""
        if not self.noisy:
            return None
        return 0.5 if self.noisy_sigma is None else self.noisy_sigma

    @property
    def core(self) -> CoreConfig:
        """The recurrent core, of the policy and of each critic."""
        return head_core(self.head, "actor.head") or CoreConfig(
            self.recurrent_net, self.recurrent_hidden_size or 64, self.recurrent_layers or 1
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the networks have recurrent cores, and learn from sequences."""
        return self.core.kind != "none"


def check_spaces(
    observation_space: gymnasium.Space[object],
    action_space: gymnasium.Space[object],
    config: OffPolicyActorConfig,
) -> None:
    """Make sure that the networks can be made for the spaces.

    Raises:
        SpaceError: for a space that no off-policy actor can do.
        ConfigError: when an option does not fit the action space.
    """
    if not isinstance(action_space, spaces.Discrete | spaces.Box):
        raise SpaceError(
            f"action space {action_space} is not supported; expected Discrete, or a Box with "
            "finite bounds; on-policy algorithms such as ppo take others"
        )
    if isinstance(action_space, spaces.Box):
        box_size(action_space)  # refuses whole numbers, before a policy for them is looked for
    is_discrete = isinstance(action_space, spaces.Discrete)
    problem = policy_misfit(config.policy, action_space)
    if problem is not None:
        raise ConfigError(problem)
    if isinstance(action_space, spaces.Box) and not is_bounded(action_space).all():
        raise SpaceError(
            f"{action_space} has an infinite bound, or one beyond 1e30, and off-policy actors "
            "scale actions in [-1, 1] to the bounds; give the environment finite ones "
            "(gymnasium.wrappers.TransformAction), or learn by an on-policy algorithm such as ppo"
        )
    if config.dueling and not is_discrete:
        raise ConfigError("actor.dueling needs Discrete actions, whose advantages it compares")
    if isinstance(observation_space, spaces.Dict) and ACTION_MASK_KEY in observation_space.spaces:
        raise SpaceError(
            f"off-policy actors do not take the observation '{ACTION_MASK_KEY}'; leave it out "
            "(env.action_mask=False; gymnasium.wrappers.FilterObservation, if the environment has "
            "it of its own), or take an on-policy algorithm such as ppo (for bc, its actor "
            "'on-policy')"
        )


def policy_misfit(policy: PolicyKind, action_space: gymnasium.Space[object]) -> str | None:
    """Say why a kind of policy cannot choose such actions, and which algorithms can.

    Returns:
        None where it can.
    """
    is_discrete = isinstance(action_space, spaces.Discrete)
    unfit = "deterministic" if is_discrete else "greedy"
    if policy != unfit:
        return None
    needed = "real actions (Box)" if is_discrete else "Discrete actions"
    fitting = [name for kind, names in LEARNERS.items() if kind != unfit for name in names]
    return (
        f"{' and '.join(LEARNERS[policy])} (actor.policy '{policy}') need {needed}, but the "
        f"environment has {action_space}; choose {', '.join(fitting)}, or an on-policy algorithm "
        "such as ppo"
    )
