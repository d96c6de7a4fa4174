r"""Trust region policy optimization.

Source: Schulman et al. 2015, https://arxiv.org/abs/1502.05477.

With the probability ratio $r_t(\theta) = \pi_\theta(a_t|s_t) / \pi_{\theta_{old}}(a_t|s_t)$:

(1) $L(\theta) = -\mathbb{E}_t[r_t A_t] - c\,\mathbb{E}_t[H(\pi_\theta(\cdot|s_t))]$

(2) $\min_\theta L(\theta)$ where
    $\mathbb{E}_t[KL(\pi_{\theta_{old}}(\cdot|s_t) \| \pi_\theta(\cdot|s_t))] \le \delta$

(3) $L^{V} = \tfrac12 \mathbb{E}_t[(V_\phi(s_t) - V^{target}_t)^2]$

Once per rollout the policy takes the step of `rl_core.gradients.trust_region` for (2); then
gradient steps on minibatches lower (3).

Deviations from the paper: advantages are estimated by GAE and normalized, and the entropy in
(1), which the paper does not have, is an option.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Interval
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rl_algos_onpolicy.advantages import advantage_columns
from rl_algos_onpolicy.config import OnPolicyConfig, on_policy_recipe
from rl_algos_onpolicy.entropy import entropy_loss
from rl_algos_onpolicy.kl import mean_kl
from rl_algos_onpolicy.ppo import surrogate_loss, value_loss
from rl_algos_onpolicy.sharing import check_names_modules, check_no_intrinsic_value, shared_modules
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, whole_batch
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import Count, NonNegative, ScheduledNonNegative, ScheduledPositive, Without
from rl_core.errors import ConfigError
from rl_core.gradients import LossModule, LossOutput, Noise, ParameterGroup
from rl_core.gradients.trust_region import ConstrainedStep, Parameters, constrained_step
from rl_core.nn.distributions import Distribution
from rl_core.storage import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class TRPOConfig(OnPolicyConfig):
    """Options of `TRPO`, besides those of `OnPolicyConfig`.

    ``entropy_coef`` is c of Eq. (1); ``optimizer`` and ``max_grad_norm`` are the value function's.

    Attributes:
        max_kl: largest divergence of the new policy from the old one (δ).
        cg_steps: iterations of the conjugate gradients.
        cg_damping: multiple of the identity added to the Hessian of the divergence.
        num_backtracks: number of steps that the line search tries.
        backtrack_ratio: factor by which the line search shortens each step.
        curvature_every: compute products with the Hessian from every n-th sample; 1 uses all.
        value_learning_rate: learning rate of the value function; a constant 0 collects and
            evaluates without learning anything, while a schedule that ends at 0 leaves the policy
            free.
        num_epochs: passes of the value function over each rollout.
        num_minibatches: minibatches per epoch of the value function.
        minibatch_size: samples per minibatch of the value function; 128 if ``num_minibatches`` is
            not given either.
        normalize_advantage: give advantages a mean of 0 and a standard deviation of 1.

    Raises:
        ConfigError: when a value is out of range or two contradict each other.
    """

    max_kl: ScheduledPositive = 0.01
    cg_steps: Count = 10
    cg_damping: NonNegative = 0.1
    num_backtracks: Count = 15
    backtrack_ratio: Annotated[float, Interval(gt=0, lt=1)] = 0.8
    curvature_every: Count = 1
    value_learning_rate: ScheduledNonNegative = 1e-3
    num_epochs: Count = 10
    num_minibatches: Annotated[Count | None, Without("minibatch_size")] = None
    minibatch_size: Annotated[Count | None, Without("num_minibatches")] = None
    normalize_advantage: bool = True

    def __post_init__(self) -> None:
        OnPolicyConfig.__post_init__(self)
        if self.num_minibatches is None and self.minibatch_size is None:
            object.__setattr__(self, "minibatch_size", 128)


class TRPO(Algorithm[TRPOConfig, RolloutBatch]):
    """Trust region policy optimization.

    A gradient step is one of the value function's; the policy's step is not a gradient step and
    cannot be taken from exchanged gradients.

    Args:
        actor: a policy and a state-value function that share nothing that is learned.
        config: options.
        add_ons: extra terms for the policy loss; what they learn themselves is learned with the
            value function, at a constant policy.

    Raises:
        ConfigError: when policy and value function share parameters.
    """

    exchanges_gradients: ClassVar[bool] = False
    takes_add_ons: ClassVar[bool] = True

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take rollouts of eight environments; normalize where actions are continuous."""
        return on_policy_recipe(env, num_envs=8, num_steps=256)

    def resolve_config(self, config: TRPOConfig) -> TRPOConfig:
        """Refuse an actor whose policy cannot move alone."""
        check_no_intrinsic_value(self.actor)
        check_names_modules(self.actor, "policy_modules", "TRPO moves the policy alone")
        shared = shared_modules(self.actor)
        if shared:
            raise ConfigError(
                f"policy and value function share {', '.join(shared)}; TRPO moves only the policy "
                "under its constraint, so give each its own "
                "(actor.shared_policy_value_network=False, actor.share_body=False, no shared "
                "feature extractor that learns)"
            )
        return config

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn the value function by gradient steps."""
        return (
            ParameterGroup(
                name="value",
                modules=(*(f"actor.{name}" for name in self.actor.value_modules), "add_ons"),
                learning_rate="value_learning_rate",
                max_grad_norm=self.config.if_set("max_grad_norm"),
                optimizer=self.config.optimizer,
            ),
        )

    def constant_modules(self) -> tuple[str, ...]:
        """Leave the policy to the constrained step."""
        return tuple(f"actor.{name}" for name in self.actor.policy_modules)

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and value targets, and keep the old policy and its entropy."""
        return advantage_columns(
            self.actor, rollout, self.config, self.hyper, keeps_policy=True, logs_entropy=True
        )

    def before_epochs(self, storage: Storage[RolloutBatch]) -> Mapping[str, Tensor]:
        """Take the policy's constrained step, unless the run only evaluates.

        Raises:
            NonFiniteError: when the surrogate or its gradient is not finite, unless such steps are
                skipped; nothing moved.
        """
        if not self.gradients.learns and self.schedules["value_learning_rate"].is_constant:
            return {}
        batch = whole_batch(storage)
        step = self.policy_step(batch)
        if not step.is_finite:
            return {"policy/step_fraction": torch.zeros(())}
        return {
            **self._policy_metrics(batch),
            "loss/policy_improvement": step.loss_before - step.loss,
            "policy/kl": step.kl,
            "policy/step_fraction": torch.tensor(step.fraction),
            "gradients/policy_norm": step.gradient_norm,
        }

    def policy_step(self, batch: RolloutBatch) -> ConstrainedStep:
        """Move the policy as far as Eq. (2) allows, or not at all.

        Args:
            batch: the whole rollout.

        Raises:
            NonFiniteError: when the surrogate or its gradient is not finite, unless such steps are
                skipped; nothing moved.
        """
        config = self.config
        surrogate = LossModule(
            self._surrogate, {"actor": self.actor, "add_ons": self.add_ons}, self.hyper
        )
        prefixes = tuple(f"{module}." for module in self.constant_modules())
        start = {
            name: parameter
            for name, parameter in surrogate.named_parameters()
            if parameter.requires_grad and name.startswith(prefixes)
        }
        sparse = _every(batch, config.curvature_every, self.actor.is_recurrent)

        def objective(parameters: Parameters, batch: RolloutBatch = batch) -> tuple[Tensor, Tensor]:
            output = surrogate.at(parameters, batch, {})
            return output.loss, output.metrics["policy/kl"]

        step = constrained_step(
            objective,
            start,
            float(self.hyper["max_kl"]),
            divergence=None if sparse is batch else lambda at: objective(at, sparse)[1],
            damping=config.cg_damping,
            num_cg_steps=config.cg_steps,
            num_backtracks=config.num_backtracks,
            backtrack_ratio=config.backtrack_ratio,
        )
        if not step.is_finite:
            self.gradients.guard.refuse(
                self.gradients.count + 1,
                batch,
                "TRPO's surrogate or its gradient is not finite; the policy was left as it was. "
                "Look for extreme rewards, observations and add-on terms",
            )
            return step
        with torch.no_grad():
            for name, parameter in start.items():
                parameter.copy_(step.parameters[name])
        return step

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (3), and what add-ons learn of their own."""
        value, _ = self.actor.value(batch.observation, batch.state, batch.episode_start)
        loss = value_loss(value, batch.value_target, batch.mask)
        metrics = {"loss/value": loss}
        if not self.add_ons.learn:
            return LossOutput(loss, metrics)
        added, more = self.add_ons.terms(batch, self._policy(batch), metrics, learned=True)
        return LossOutput(loss + sum(added), {**metrics, **more})

    @torch.no_grad()
    def _policy(self, batch: RolloutBatch) -> Distribution:
        return self.actor.distribution(batch.observation, batch.state, batch.episode_start)[0]

    @torch.no_grad()
    def _policy_metrics(self, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Return the policy's term of Eq. (1), and what add-ons log that learn nothing."""
        now = self._policy(batch)
        _, logged = self.add_ons.terms(batch, now, {}, learned=False)
        return {**logged, "loss/policy": _policy_term(batch, now)}

    def _surrogate(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (1), with the divergence of Eq. (2) among the metrics."""
        now, _ = self.actor.distribution(batch.observation, batch.state, batch.episode_start)
        coef = self.hyper["entropy_coef"]
        entropy_term, entropy = entropy_loss(self.config, coef, now, batch.mask)
        metrics = {"policy/kl": mean_kl(batch, now), "policy/entropy": entropy}
        added, more = self.add_ons.terms(batch, now, metrics)
        # Eq. (1); the line search compares sums, in which a large term must not swallow the others.
        terms = torch.stack([_policy_term(batch, now), entropy_term, *added])
        return LossOutput(terms.double().sum(), {**metrics, **more})


def _policy_term(batch: RolloutBatch, now: Distribution) -> Tensor:
    """The first term of Eq. (1)."""
    log_ratio = now.log_prob(batch.action) - batch.log_prob
    return surrogate_loss(log_ratio, batch.advantage, batch.mask)


def _every(batch: RolloutBatch, stride: int, recurrent: bool) -> RolloutBatch:
    """Keep one sample, or one sequence where recurrent, of so many."""
    if stride == 1:
        return batch

    def keep(column: Tensor) -> Tensor:
        return column[:, ::stride] if recurrent else column[::stride]

    state = {name: state[::stride] for name, state in batch.state.items()}  # has no axis of time
    kept: RolloutBatch = tree_map_only(Tensor, keep, replace(batch, state={}))
    return replace(kept, state=state)
