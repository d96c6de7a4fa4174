"""What VPG and A2C share: the policy gradient, and an optimiser each for policy and value."""

from dataclasses import replace
from typing import ClassVar, Protocol, TypeVar

from torch import Tensor

from rl_algos_onpolicy.sharing import check_no_intrinsic_value, shared_modules
from rl_core.algorithm import Algorithm, Scheduled
from rl_core.batch import RolloutBatch
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig, ParameterGroup, masked_mean

_RATES = ("policy_learning_rate", "value_learning_rate")


class PolicyGradientOptions(Protocol):
    """The options of a config that say how policy and value function are moved."""

    @property
    def policy_learning_rate(self) -> Scheduled:
        """Of the policy's optimiser."""

    @property
    def value_learning_rate(self) -> Scheduled | None:
        """Of the value function's optimiser; None learns none."""

    @property
    def max_grad_norm(self) -> Scheduled | None:
        """Bound of the joint gradient's norm, or None."""

    @property
    def optimizer(self) -> OptimizerConfig:
        """The update rule of both."""


OptionsT = TypeVar("OptionsT", bound=PolicyGradientOptions)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    r"""Return $-\mathbb{E}_t[\log \pi_\theta(a_t|s_t) A_t]$, 0-dim.

    Args:
        log_prob: shape `(N,)`.
        advantage: shape `(N,)`.
        mask: shape `(N,)`, which samples count.
    """
    return -masked_mean(log_prob * advantage, mask)


class PolicyGradient(Algorithm[OptionsT, RolloutBatch]):
    """Policy and value function with an optimiser each; the policy's moves what they share.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when what is shared is to be moved at two learning rates, or the actor has a
            second value function.
    """

    takes_add_ons: ClassVar[bool] = True

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give policy and value function an optimiser each."""
        check_no_intrinsic_value(self.actor)
        config, bound = self.config, self.if_set("max_grad_norm")
        policy = ParameterGroup(
            name="policy",
            modules=("actor", "add_ons"),
            learning_rate="policy_learning_rate",
            max_grad_norm=bound,
            joint_norm=True,
            optimizer=config.optimizer,
        )
        if config.value_learning_rate is None:
            return (policy,)
        value_rate = "value_learning_rate"
        shared, rates = shared_modules(self.actor), [getattr(config, rate) for rate in _RATES]
        if shared and rates[0] != rates[1]:
            usual = type(config)()
            given = [rate for rate in _RATES if getattr(config, rate) != getattr(usual, rate)]
            if len(given) == 2:
                raise ConfigError(
                    f"policy and value function share {', '.join(shared)}, so "
                    f"{' and '.join(_RATES)} must be equal, got {rates[0]} and {rates[1]}"
                )
            (value_rate,) = given  # the one that was given is both
            policy = replace(policy, learning_rate=value_rate)
        value = ParameterGroup(
            name="value",
            modules=tuple(f"actor.{name}" for name in self.actor.value_modules),
            learning_rate=value_rate,
            max_grad_norm=bound,
            joint_norm=True,
            optimizer=config.optimizer,
        )
        return (value, policy)

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: Scheduled
    ) -> None:
        """Change a hyper-parameter; where something is shared, either learning rate is both.

        Raises:
            ConfigError: as for any algorithm.
        """
        is_rate = parameter_name in _RATES and self.config.value_learning_rate is not None
        names = _RATES if is_rate and shared_modules(self.actor) else (parameter_name,)
        for name in names:
            super().update_algorithm_parameter(name, new_parameter_value)
