"""Which networks an off-policy actor is made of, and for which spaces."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import gymnasium
from gymnasium import spaces

from rl_algos_offpolicy.critics.config import CriticConfig
from rl_core.config import check_choice, check_owners, check_ranges, check_unused
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.heads import box_size
from rl_core.nn.init import Start
from rl_core.nn.layered_head import Memory, head_memory
from rl_core.nn.layers import LayerConfig, check_layers
from rl_core.nn.mlp import Activation
from rl_core.nn.torso import MemoryKind
from rl_core.spaces import ACTION_MASK_KEY

PolicyKind = Literal["stochastic", "deterministic", "greedy"]
"""How actions are chosen: sampled, by a function of the observation, or by the first critic."""

LEARNERS: Mapping[PolicyKind, tuple[str, ...]] = {
    "greedy": ("dqn", "rainbow"),
    "deterministic": ("td3", "ddpg"),
    "stochastic": ("sac", "bc"),
}
"""Which algorithms of this package learn each kind of policy, by their registered names."""

_OWNERS = {
    "recurrent_hidden_size": ("recurrent_net", ("gru", "lstm")),
    "recurrent_layers": ("recurrent_net", ("gru", "lstm")),
}
"""Which option with which values each other option belongs to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffPolicyActorConfig(CriticConfig):
    """The networks of an `OffPolicyActor`.

    Attributes:
        policy: ``"stochastic"`` samples a squashed Gaussian (Box) or a categorical distribution
            (Discrete); ``"deterministic"`` is a function with outputs in [-1, 1] (Box);
            ``"greedy"`` has no network and takes the action of highest value (Discrete).
        hidden_sizes: widths of the policy's layers, and of the critics'.
        critic_hidden_sizes: widths of the critics' layers; None takes ``hidden_sizes``.
        critic_layer_norm: normalise the critics' hidden layers, before their activation.
        critic_dropout: probability with which an output of the critics' hidden layers is dropped
            in updates, in [0, 1); for stochastic policies.
        activation: after each hidden layer.
        body: layers as data in the place of the encoder, see `rl_core.nn.layers`.
        head: layers as data in the place of ``hidden_sizes``; the last may be ``GRU`` or ``LSTM``,
            the memory of all networks, with ``hidden_size`` and ``num_layers``, then
            ``ActionLinear``, the output that is there in any case.
        critic_body: the critics'; None takes layers like the policy's.
        critic_head: the critics'; None takes layers like the policy's.
        initial_weights: how layers start: ``"uniform"`` as ``nn.Linear`` does, weights and biases
            alike, or ``"orthogonal"`` with zero biases. Memories and the policy's output are
            orthogonal anyway, and the user's own parts stay as they are.
        num_critics: how many action-value functions.
        dueling: value and advantages as streams of their own (Discrete).
        normalize_observations: vectors by running statistics, refreshed once per update.
        image_features: width of each image's features.
        recurrent_net: memory after the layers, in the policy and in each critic.
        recurrent_hidden_size: its size; None takes 64.
        recurrent_layers: how many of its layers are stacked; None takes 1.

    Raises:
        ConfigError: when a value is out of range, or an option belongs to what is not chosen.
    """

    replaces: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "head": ("hidden_sizes",),
        "critic_head": ("critic_hidden_sizes",),
    }

    policy: PolicyKind = "stochastic"
    hidden_sizes: tuple[int, ...] = (256, 256)
    critic_hidden_sizes: tuple[int, ...] | None = None
    critic_layer_norm: bool = False
    critic_dropout: float = 0.0
    activation: Activation = "relu"
    body: tuple[LayerConfig, ...] | None = None
    head: tuple[LayerConfig, ...] | None = None
    critic_body: tuple[LayerConfig, ...] | None = None
    critic_head: tuple[LayerConfig, ...] | None = None
    initial_weights: Start = "uniform"
    num_critics: int = 2
    dueling: bool = False
    normalize_observations: bool = False
    image_features: int = 512
    recurrent_net: MemoryKind = "none"
    recurrent_hidden_size: int | None = None
    recurrent_layers: int | None = None

    def __post_init__(self) -> None:
        CriticConfig.__post_init__(self)
        check_choice(self, "policy", get_args(PolicyKind))
        check_choice(self, "recurrent_net", get_args(MemoryKind))
        check_choice(self, "initial_weights", get_args(Start))
        check_ranges(
            self,
            counts=("num_critics", "image_features", "recurrent_hidden_size", "recurrent_layers"),
            widths=("hidden_sizes", "critic_hidden_sizes"),
        )
        check_owners(self, _OWNERS)
        for path in ("body", "critic_body", "critic_head"):
            check_layers(getattr(self, path), path)
        check_unused(self)
        for name in ("hidden_sizes", "body", "head"):
            if self.policy == "greedy" and getattr(self, f"critic_{name}") is not None:
                raise ConfigError(
                    f"critic_{name} says the same as {name} where the policy is 'greedy'; "
                    f"give {name} alone"
                )
        if head_memory(self.head, "head") is not None and self.recurrent_net != "none":
            raise ConfigError("head has a memory of its own; leave recurrent_net out")
        for option, off in (("distribution", "none"), ("noisy", False)):
            if self.policy != "greedy" and getattr(self, option) != off:
                raise ConfigError(
                    f"{option}={getattr(self, option)!r} needs the policy 'greedy', got "
                    f"'{self.policy}'"
                )
        if not 0.0 <= self.critic_dropout < 1.0:
            raise ConfigError(f"critic_dropout must be in [0, 1), got {self.critic_dropout}")
        if self.critic_dropout and self.policy != "stochastic":
            raise ConfigError(
                f"critic_dropout={self.critic_dropout} needs the policy 'stochastic', got "
                f"'{self.policy}'"
            )
        for option in ("noisy", "critic_layer_norm", "critic_dropout"):
            if getattr(self, option) and self.is_recurrent:
                raise ConfigError(f"{option} does not go with recurrent_net; set one of them off")
            if getattr(self, option) and self.has_layered_critics:
                raise ConfigError(
                    f"{option} is for the critics' default layers, and head or critic_head "
                    "replaces them; set it off, or leave that out"
                )
        for option in ("critic_layer_norm", "critic_dropout"):
            if getattr(self, option) and not self.critic_widths:
                raise ConfigError(
                    f"{option} has no effect on critics without hidden layers; leave it out, or "
                    "give hidden_sizes or critic_hidden_sizes"
                )
        if self.activation != "relu" and self.head is not None and self.has_layered_critics:
            raise ConfigError("activation has no effect with head; leave one of them out")
        if self.noisy and self.initial_weights != "uniform":
            raise ConfigError(
                "noisy layers start uniform; leave initial_weights out, or set noisy off"
            )
        if self.noisy and self.critic_layer_norm:
            raise ConfigError("noisy does not go with critic_layer_norm; set one of them off")

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
    def memory(self) -> Memory:
        """What remembers, in the policy and in each critic."""
        return head_memory(self.head, "actor.head") or Memory(
            self.recurrent_net, self.recurrent_hidden_size or 64, self.recurrent_layers or 1
        )

    @property
    def is_recurrent(self) -> bool:
        """Whether the networks have memories, and learn from sequences."""
        return self.memory.kind != "none"


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
            "finite bounds"
        )
    if isinstance(action_space, spaces.Box):
        box_size(action_space)  # refuses whole numbers, before a policy for them is looked for
    is_discrete = isinstance(action_space, spaces.Discrete)
    problem = policy_misfit(config.policy, action_space)
    if problem is not None:
        raise ConfigError(problem)
    if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
        raise SpaceError(
            f"{action_space} has an infinite bound, and off-policy actors scale actions in [-1, 1] "
            "to the bounds; give the environment finite ones (gymnasium.wrappers.TransformAction), "
            "or learn by an on-policy algorithm such as ppo"
        )
    if config.dueling and not is_discrete:
        raise ConfigError("actor.dueling needs Discrete actions, whose advantages it compares")
    if isinstance(observation_space, spaces.Dict) and ACTION_MASK_KEY in observation_space.spaces:
        raise SpaceError(
            f"off-policy actors do not take the observation '{ACTION_MASK_KEY}'; leave it out"
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
    fitting = ", or ".join(
        f"{' or '.join(learners)} (actor.policy '{kind}')"
        for kind, learners in LEARNERS.items()
        if kind != unfit
    )
    return (
        f"actor.policy '{policy}' needs {needed}, but the environment has {action_space}; choose "
        f"{fitting}"
    )
