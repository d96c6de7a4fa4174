"""Options that all on-policy algorithms share, and their default recipe."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from gymnasium import spaces

from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.config import (
    ComponentSpec,
    Config,
    Needs,
    ScheduledFraction,
    ScheduledNonNegative,
    ScheduledPositive,
)
from rl_core.errors import ConfigError
from rl_core.gradients import OptimizerConfig
from rl_core.nn.torso import has_vectors
from rl_core.returns import AdvantageEstimator, ValueTarget
from rl_core.spaces import HybridSpace

AdvantageNormalization = Literal["minibatch", "batch", "none"]
"""Over which samples advantages are normalized."""

EntropyMethod = Literal["regularized", "max", "no_entropy"]
"""Add the mean entropy to the objective, each step's entropy to its reward, or neither."""

GaeLambda: TypeAlias = Annotated[ScheduledFraction, Needs("advantage_estimator", "gae", "vtrace")]
_NeedsEntropy = Needs("entropy_method", "regularized", "max")


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyConfig(Config):
    """Options that on-policy algorithms share.

    Attributes:
        gamma: discount factor per step.
        gae_lambda: parameter λ of the estimators ``gae`` and ``vtrace``: smaller values have less
            variance, larger ones less bias.
        advantage_estimator: estimator of advantages: ``gae`` and ``vtrace`` average over horizons,
            ``td`` looks one step ahead, ``baseline`` takes the return minus the value, ``return``
            the return alone.
        value_target: target of the value function: ``advantage`` takes the estimator's own,
            ``return`` complete returns, ``td`` one-step targets.
        normalize_advantage: give advantages a mean of 0 and a standard deviation of 1.
        positive_advantage: subtract the smallest advantage after normalizing, so that none is
            negative.
        entropy_method: what the policy's entropy is added to: ``regularized`` is the objective,
            ``max`` the reward of each step, ``no_entropy`` nothing.
        entropy_coef: weight of the entropy in the objective, or in the rewards.
        use_softplus_entropy: pass entropies through softplus, which keeps them positive.
        stop_entropy_gradient: treat the entropy as a constant, which ``max`` requires.
        max_grad_norm: upper bound of the gradient's norm; None disables it.
        optimizer: optimizer and its options.

    Raises:
        ConfigError: when a value is out of range, or has no effect beside another one.
    """

    gamma: ScheduledFraction = 0.99
    gae_lambda: GaeLambda = 0.95
    advantage_estimator: AdvantageEstimator = "gae"
    value_target: ValueTarget = "advantage"
    normalize_advantage: bool | AdvantageNormalization = False
    positive_advantage: bool = False
    entropy_method: EntropyMethod = "regularized"
    entropy_coef: Annotated[ScheduledNonNegative, _NeedsEntropy] = 0.0
    use_softplus_entropy: Annotated[bool, _NeedsEntropy] = False
    stop_entropy_gradient: Annotated[bool, _NeedsEntropy] = False
    max_grad_norm: ScheduledPositive | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.entropy_method == "max" and self.normalize_advantage not in (False, "none"):
            raise ConfigError(
                "entropy_method='max' rewards entropy, and normalize_advantage would remove it "
                "again; turn that off, or use 'regularized'"
            )
        if self.entropy_method == "max" and not self.stop_entropy_gradient:
            raise ConfigError(
                "entropy_method='max' rewards entropy, and a reward has no gradient; set "
                "stop_entropy_gradient=True, or use 'regularized'"
            )
        if self.entropy_method != "max" and self.stop_entropy_gradient and self.entropy_coef != 0.0:
            raise ConfigError(
                "entropy_coef has no effect on a policy that stop_entropy_gradient=True keeps from "
                "the entropy; leave one of them out, or use entropy_method='max'"
            )


def on_policy_recipe(
    env: EnvSpec, *, num_envs: int, num_steps: int, entropy_coef: float = 0.0
) -> DefaultRecipe:
    """Compose an `OnPolicyActor` with a `RolloutStorage`.

    Continuous control gets normalized observations, where they are vectors at least in part, and
    scaled rewards; without them the sizes of observations and rewards decide whether anything is
    learned.

    Args:
        env: the environment.
        num_envs: how many to step together.
        num_steps: rows per rollout.
        entropy_coef: weight of the entropy of discrete actions.
    """
    continuous = isinstance(env.action_space, spaces.Box | HybridSpace)
    normalize = continuous and has_vectors(env.observation_space)
    return DefaultRecipe(
        actor=ComponentSpec("actor", "on-policy", {"normalize_observations": normalize}),
        storage=ComponentSpec("storage", "rollout", {"num_steps": num_steps}),
        env={"num_envs": num_envs},
        algorithm={} if continuous or not entropy_coef else {"entropy_coef": entropy_coef},
        trainer={"scale_rewards": continuous},
    )
