r"""Vanilla policy gradient: REINFORCE, with or without a value function.

Source: Williams 1992, https://doi.org/10.1007/BF00992696; advantages by Schulman et al. 2016,
https://arxiv.org/abs/1506.02438.

(1) $L^{\pi} = -\mathbb{E}_t[\log \pi_\theta(a_t|s_t) A_t] - c\,\mathbb{E}_t[H_t]$

(2) $L^{V} = \mathbb{E}_t[(V_\phi(s_t) - V^{target}_t)^2]$

(3) $A_t = \sum_{k \ge 0} \gamma^k r_{t+k} - V_\phi(s_t)$

$H_t$ is the policy's entropy, or its softplus. With entropy as a reward, $r_t + c H_t$ takes the
place of $r_t$ and (1) has no second term. Without a value function $V_\phi$ is 0 throughout.

Deviations from the paper: advantages are normalized, and an episode that a time limit or the
end of the rollout cuts is continued by the value function, where there is one.

`PolicyGradient` has what A2C shares: (1), (2), and an optimizer each for policy and value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from torch import Tensor

from rl_algos_onpolicy.advantages import advantage_columns
from rl_algos_onpolicy.config import GaeLambda, OnPolicyConfig, on_policy_recipe
from rl_algos_onpolicy.entropy import entropy_loss
from rl_algos_onpolicy.sharing import check_names_modules, check_no_intrinsic_value, shared_modules
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import Count, Linear, Scheduled, ScheduledNonNegative
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup, masked_mean

_RATES = ("policy_learning_rate", "value_learning_rate")
_FALLING_RATE = Linear(3e-3, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyGradientConfig(OnPolicyConfig):
    """Options of `PolicyGradient`, besides those of `OnPolicyConfig`.

    ``entropy_coef`` is c of Eq. (1).

    Attributes:
        policy_learning_rate: learning rate of the policy.
        value_learning_rate: learning rate of the value function; None learns no value function:
            advantages are the returns, and an episode counts no further than the rollout goes.
    """

    policy_learning_rate: ScheduledNonNegative = _FALLING_RATE
    value_learning_rate: ScheduledNonNegative | None = 1e-2
    gae_lambda: GaeLambda = 1.0


ConfigT = TypeVar("ConfigT", bound=PolicyGradientConfig)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    r"""Return $-\mathbb{E}_t[\log \pi_\theta(a_t|s_t) A_t]$, 0-dim.

    Args:
        log_prob: shape `(N,)`.
        advantage: shape `(N,)`.
        mask: shape `(N,)`, which samples count.
    """
    return -masked_mean(log_prob * advantage, mask)


class PolicyGradient(Algorithm[ConfigT, RolloutBatch]):
    """Policy and value function with an optimizer each; the policy's moves what they share.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`; the value function is
            left alone where none is learned.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when what is shared is to be moved at two learning rates, or the actor has a
            second value function.
    """

    takes_add_ons: ClassVar[bool] = True

    @property
    def _has_value(self) -> bool:
        return self.config.value_learning_rate is not None

    def resolve_config(self, config: ConfigT) -> ConfigT:
        """Refuse an actor with a second value function."""
        check_no_intrinsic_value(self.actor)
        return config

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give policy and value function an optimizer each."""
        config, bound = self.config, self.config.if_set("max_grad_norm")
        policy = ParameterGroup(
            name="policy",
            modules=("actor", "add_ons"),
            learning_rate="policy_learning_rate",
            max_grad_norm=bound,
            joint_norm=True,
            optimizer=config.optimizer,
        )
        if not self._has_value:
            return (policy,)
        need = f"{type(self).__name__} gives the value function an optimizer of its own"
        check_names_modules(self.actor, "value_modules", need)
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
            value_rate = given[0] if given else "policy_learning_rate"  # it is both
            policy = replace(policy, learning_rate=value_rate)
        value = ParameterGroup(
            name="value",
            modules=self._value_modules,
            learning_rate=value_rate,
            max_grad_norm=bound,
            joint_norm=True,
            optimizer=config.optimizer,
        )
        return (value, policy)

    def constant_modules(self) -> tuple[str, ...]:
        """Leave the value function alone where none is learned."""
        return () if self._has_value else self._value_modules

    @property
    def _value_modules(self) -> tuple[str, ...]:
        return tuple(f"actor.{name}" for name in self.actor.value_modules)

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: Scheduled
    ) -> None:
        """Change a hyper-parameter; where something is shared, either learning rate is both.

        Raises:
            ConfigError: as for any algorithm.
        """
        is_rate = parameter_name in _RATES and self._has_value
        names = _RATES if is_rate and shared_modules(self.actor) else (parameter_name,)
        for name in names:
            super().update_algorithm_parameter(name, new_parameter_value)

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and value targets."""
        return advantage_columns(
            self.actor, rollout, self.config, self.hyper, has_value=self._has_value
        )

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (1) for the policy's parameters plus Eq. (2) for the value function's."""
        mask = batch.mask
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        policy_term = policy_gradient_loss(now.log_prob, batch.advantage, mask)  # Eq. (1)
        entropy_term, entropy = entropy_loss(
            self.config, self.hyper["entropy_coef"], now.distribution, mask
        )
        metrics = {"loss/policy": policy_term, "policy/entropy": entropy}
        total = policy_term
        if self._has_value:
            assert now.value is not None
            value_term = masked_mean((now.value - batch.value_target).square(), mask)  # Eq. (2)
            total, metrics["loss/value"] = total + value_term, value_term
        added, more = self.add_on_terms(batch, now.distribution, metrics)
        return LossOutput(total + added + entropy_term, {**metrics, **more})


@dataclass(frozen=True, kw_only=True, slots=True)
class VPGConfig(PolicyGradientConfig):
    """Options of `VPG`, besides those of `PolicyGradientConfig`.

    With a ``gae_lambda`` of 1 advantages are those of Eq. (3); without a value function λ is one
    more discount.

    Attributes:
        normalize_advantage: give advantages a mean of 0 and a standard deviation of 1.
        num_epochs: passes over each rollout.
        num_minibatches: minibatches per epoch.

    Raises:
        ConfigError: when a value is out of range or two contradict each other.
    """

    normalize_advantage: bool = True
    num_epochs: Count = 1
    num_minibatches: Count = 1

    def __post_init__(self) -> None:
        PolicyGradientConfig.__post_init__(self)
        if self.value_learning_rate is None and (
            self.advantage_estimator not in ("gae", "return") or self.value_target != "advantage"
        ):
            raise ConfigError(
                f"advantage_estimator='{self.advantage_estimator}' and "
                f"value_target='{self.value_target}' need a value function; give "
                "value_learning_rate, or leave them out"
            )


class VPG(PolicyGradient[VPGConfig]):
    """Vanilla policy gradient: one gradient step per rollout, unless options say otherwise.

    Args:
        actor: a policy and a state-value function, such as `OnPolicyActor`; the value function is
            left alone where none is learned.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when a shared torso is to be moved at two learning rates.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take rollouts of eight environments that are about as long as short episodes.

        While all returns are alike, normalized advantages are nothing but errors of the value
        function. The entropy of discrete actions counts, so that these do not end exploration.
        """
        return on_policy_recipe(env, num_envs=8, num_steps=128, entropy_coef=0.01)
