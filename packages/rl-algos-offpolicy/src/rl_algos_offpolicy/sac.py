r"""Soft actor-critic.

Source: Haarnoja et al. 2018, https://arxiv.org/abs/1812.05905; discrete actions: Christodoulou
2019, https://arxiv.org/abs/1910.07207.

(1) $y = r + \gamma\,(1 - d)\,(\min_i Q_{\bar\theta_i}(s', a') - \alpha \log \pi_\phi(a'|s'))$ with
    $a' \sim \pi_\phi(\cdot|s')$

(2) $L^Q = \tfrac12 \sum_i \mathbb{E}[(Q_{\theta_i}(s, a) - y)^2]$

(3) $L^\pi = \mathbb{E}[\alpha \log \pi_\phi(a|s) - \min_i Q_{\theta_i}(s, a)]$ with
    $a \sim \pi_\phi(\cdot|s)$

(4) $L^\alpha = -\log \alpha\; \mathbb{E}[\log \pi_\phi(a|s) + \bar H]$

(5) $L^{CAPS} = \lambda_T \lVert \mu(s) - \mu(s')\rVert + \lambda_S \lVert \mu(s) - \mu(\tilde s)
    \rVert$ with $\tilde s \sim N(s, \sigma)$: Mysore et al. 2021,
    https://arxiv.org/abs/2012.06644, Eq. (1) to (3)

With discrete actions the expectations over a and a' in (1), (3) and (4) are sums over all actions.

REDQ (Chen et al. 2021, https://arxiv.org/abs/2101.05982, Algorithm 1) has many critics and changes
two equations; a step on (7), (4) and (5) is taken only once per update:

(6) $y = r + \gamma\,(1 - d)\,(\min_{i \in M} Q_{\bar\theta_i}(s', a') - \alpha
    \log \pi_\phi(a'|s'))$ with M a few of the critics, drawn anew for each step
    (``num_target_critics``)

(7) $L^\pi = \mathbb{E}[\alpha \log \pi_\phi(a|s) - \tfrac1N \sum_i Q_{\theta_i}(s, a)]$
    (``policy_value="mean"``)

DroQ (Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034, Algorithm 2) has two critics with
dropout and layer normalization; (1), (2), and (3) or (7), each draw their own dropout masks.

(2) steps first; then (3) and (4) step together.

Deviations from the paper: (4) is the loss in log α that implementations use, whose gradient differs
by the factor α; y discounts several rewards when the storage gathers several steps; for discrete
actions the default entropy target is 0.89 of the largest entropy, as in CleanRL, not 0.98.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from rl_algos_offpolicy.actor import detached, next_obs_inputs, obs_inputs
from rl_algos_offpolicy.actor_critic import ActorCritic
from rl_algos_offpolicy.config import off_policy_recipe
from rl_algos_offpolicy.critics.critics import (
    absolute_error,
    bootstrapped_target,
    squared_error_loss,
    weighted_mean,
)
from rl_algos_offpolicy.sac_config import SACConfig, check_actor
from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.batch import ReplayBatch
from rl_core.config import Scheduled, as_schedule
from rl_core.errors import ConfigError
from rl_core.gradients import (
    LossOutput,
    Noise,
    ParameterGroup,
    TargetNetwork,
    call_frozen,
    masked_mean,
)
from rl_core.nn.distributions import Categorical, Distribution
from rl_core.storage import Storage

_SMOOTHNESS = ("temporal_smoothness", "spatial_smoothness")


class Temperature(nn.Module):
    """The temperature α: either log α is learned, or α is a fixed number.

    Args:
        initial: initial value of α.
        is_learned: whether α is learned, by Eq. (4).

    Attributes:
        log: log α, a parameter; missing if α is fixed.
    """

    log: nn.Parameter
    fixed: Tensor

    def __init__(self, initial: float, is_learned: bool) -> None:
        super().__init__()
        self.is_learned = is_learned
        if is_learned:
            self.log = nn.Parameter(torch.tensor(math.log(initial)))
        else:
            self.register_buffer("fixed", torch.tensor(float(initial)))

    def forward(self) -> Tensor:
        """Return α, 0-dim, without gradient."""
        return self.log.detach().exp() if self.is_learned else self.fixed


@dataclass(frozen=True, slots=True)
class PolicyActions:
    """The actions of an expectation over the policy: one sample per state, or all discrete actions.

    Attributes:
        action: a sample, shape `(N, A)`; None for all discrete actions.
        log_prob: log π of it, shape `(N,)`, or of all actions, `(N, n)`.
        prob: π of all actions, shape `(N, n)`; None for a sample.
    """

    action: Tensor | None
    log_prob: Tensor
    prob: Tensor | None

    @classmethod
    def of(cls, policy: Distribution, noise: Noise, name: str) -> Self:
        """Sample real actions with ``noise[name]``, or take all discrete ones."""
        if isinstance(policy, Categorical):
            log_prob = torch.log_softmax(policy.logits, -1)
            return cls(None, log_prob, log_prob.exp())
        return cls(*policy.sample_with_log_prob(noise[name]), None)

    def expectation(self, values: Tensor) -> Tensor:
        """Return the expectation of the actions' values, `(N,)`; from a sample, an estimate."""
        return values if self.prob is None else (self.prob * values).sum(-1)


class SAC(ActorCritic[SACConfig]):
    """Soft actor-critic for real and discrete actions.

    Args:
        actor: an `OffPolicyActor` with a stochastic policy.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when the policy is not stochastic, smoothness is set for discrete actions or
            for observations that are not a Box, or an option has no effect.
    """

    def resolve_config(self, config: SACConfig) -> SACConfig:
        """Refuse an actor and options that do not go together."""
        self._is_smoothed = any(_is_ever_positive(getattr(config, name)) for name in _SMOOTHNESS)
        check_actor(self.actor, config, is_smoothed=self._is_smoothed)
        return config

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make the target critics and the temperature."""
        actor, config = self.actor, self.config
        assert actor.policy is not None
        self.policy = actor.policy
        self.target_critics = copy.deepcopy(actor.critics)
        self.temperature = Temperature(config.initial_temperature, config.learn_temperature)
        self.temperature.to(self.device)
        if config.target_entropy is not None:
            self._target_entropy = config.target_entropy
        elif actor.is_discrete:
            self._target_entropy = 0.89 * math.log(actor.num_actions)
        else:
            self._target_entropy = -float(actor.action_spec.shape[0])
        return {"target_critics": self.target_critics, "temperature": self.temperature}

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (2) for the critics; then, when due, (3) and (5) for the policy, (4) for α."""
        parts = {"critic": self.critic_loss, "policy": self.policy_loss}
        return self.sum_due(parts, batch, noise)

    def critic_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (2)."""
        target = self.target(batch, noise)
        obs = obs_inputs(self.actor.critics, batch)
        values = self.actor.critics(obs, batch.action, noise.get("dropout/values"))
        loss = 0.5 * squared_error_loss(values, target, batch)  # Eq. (2)
        metrics = {
            "loss/critic": loss,
            "value/mean": masked_mean(values.mean(0), batch.mask),
            "policy/temperature": self.temperature(),
        }
        return LossOutput(loss, metrics, {"td_error": absolute_error(values.detach(), target)})

    @torch.no_grad()
    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        """Eq. (1), or (6) of REDQ, shape `(N,)`."""
        next_obs = next_obs_inputs(self.target_critics, batch)
        chosen, dropout = noise.get("chosen"), noise.get("dropout/target")  # REDQ's M; DroQ
        if chosen is not None and dropout is not None:
            dropout = dropout.index_select(-2, chosen)
        actions = PolicyActions.of(self.policy(next_obs_inputs(self.policy, batch)), noise, "next")
        min_q = self.target_critics(next_obs, actions.action, dropout, chosen).amin(0)
        # V(s') = E[min Q(s', a') - α log π(a'|s')], and y = r + γ (1 - d) V(s')
        next_value = actions.expectation(min_q - self.temperature() * actions.log_prob)
        return bootstrapped_target(batch, next_value, self.hyper)

    def policy_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (3) or (7), (4) and (5), and the add-ons' terms."""
        distribution: Distribution = self.policy(obs_inputs(self.policy, batch))
        critic_obs = detached(obs_inputs(self.actor.critics, batch))
        actions = PolicyActions.of(distribution, noise, "now")
        q_pi = call_frozen(
            self.actor.critics, critic_obs, actions.action, noise.get("dropout/policy")
        )
        q_pi = q_pi.amin(0) if self.config.policy_value == "min" else q_pi.mean(0)  # Eq. (3), (7)
        objective = actions.expectation(self.temperature() * actions.log_prob - q_pi)
        policy_loss = weighted_mean(objective, batch)
        log_prob = actions.expectation(actions.log_prob).detach()
        metrics = {
            "loss/policy": policy_loss,
            "policy/entropy": -masked_mean(log_prob, batch.mask),
        }
        added, more = self.add_on_terms(batch, distribution, metrics)
        total = policy_loss + added
        if self._is_smoothed:
            smoothness = self.smoothness(batch, distribution.mode(), noise["nearby"])
            metrics["loss/smoothness"] = smoothness
            total = total + smoothness
        if self.config.learn_temperature:
            excess = masked_mean(log_prob + self._target_entropy, batch.mask)
            metrics["loss/temperature"] = alpha_loss = -self.temperature.log * excess  # Eq. (4)
            total = total + alpha_loss
        return LossOutput(total, {**metrics, **more})

    def smoothness(self, batch: ReplayBatch, here: Tensor, noise: Tensor) -> Tensor:
        """Eq. (5), CAPS, 0-dim; each action is compared with its own successor and neighbor.

        Args:
            batch: transitions of one step.
            here: the policy's modes μ(s) at the observations, shape `(N, A)`.
            noise: standard normal, shape of the observations.
        """
        assert isinstance(batch.observation, Tensor)
        hyper = self.hyper
        nearby = batch.observation + hyper["smoothness_std"] * noise
        after, around = (
            self.policy(observation).mode() for observation in (batch.next_observation, nearby)
        )
        temporal = torch.linalg.vector_norm(here - after, dim=-1)
        spatial = torch.linalg.vector_norm(here - around, dim=-1)
        return weighted_mean(
            hyper["temporal_smoothness"] * temporal + hyper["spatial_smoothness"] * spatial, batch
        )

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        """Draw for the actions now and next, CAPS' neighbors, REDQ's subset and DroQ's dropout.

        Raises:
            ConfigError: when temporal smoothness is set, but transitions have several steps.
        """
        self._check_single_steps(batch.reward.shape[-1])
        actor, shape, generator = self.actor, tuple(batch.mask.shape), self.generator
        names = () if actor.is_discrete else ("now", "next")  # discrete actions are all taken
        noise = {name: actor.draw_noise(shape, generator) for name in names}
        if self._is_smoothed:
            assert isinstance(batch.observation, Tensor)
            like = batch.observation.shape
            noise["nearby"] = torch.randn(like, generator=generator, device=self.device)
        if self.config.num_target_critics is not None:
            num_critics = actor.config.num_critics
            order = torch.randperm(num_critics, generator=generator, device=self.device)
            noise["chosen"] = order[: self.config.num_target_critics]
        if actor.config.critic_dropout:
            for name in ("dropout/values", "dropout/target", "dropout/policy"):
                noise[name] = actor.critics.draw_noise(shape, generator)
        return noise

    @property
    def policy_every(self) -> int:
        """Gradient steps of the critics per step of policy and temperature."""
        return self.config.policy_delay

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with a stochastic policy and two critics."""
        return off_policy_recipe({"policy": "stochastic"})

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give critics, policy and temperature an optimizer each, the last without decay."""
        groups = super().parameter_groups()
        if not self.config.learn_temperature:
            return groups
        temperature = self.parameter_group("temperature", ("temperature",))
        # Decay would pull log(α) to 0, which is α = 1, whatever the entropy is.
        without_decay = replace(temperature.optimizer, weight_decay=0.0)
        return (*groups, replace(temperature, optimizer=without_decay))

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Let the target critics follow the critics."""
        return (TargetNetwork(module="target_critics", source="actor.critics", tau="tau"),)

    def check_storage(self, storage: Storage[ReplayBatch]) -> None:
        """Refuse transitions of several steps if temporal smoothness is set."""
        self._check_single_steps(storage.n_step)

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: Scheduled
    ) -> None:
        """Change a hyper-parameter; smoothness, Eq. (5), cannot be switched on during a run.

        Raises:
            ConfigError: as for any algorithm, and for smoothness in a run that began without any.
        """
        begins = not self._is_smoothed and new_parameter_value != 0.0
        if parameter_name in _SMOOTHNESS and begins:
            raise ConfigError(
                f"{parameter_name} cannot become {new_parameter_value} in a run that began without "
                "smoothness, which is not computed there; begin with a number above 0"
            )
        super().update_algorithm_parameter(parameter_name, new_parameter_value)

    def _check_single_steps(self, num_steps: int) -> None:
        if not self._is_smoothed or num_steps == 1:
            return
        if _is_ever_positive(self.schedules["temporal_smoothness"]):
            raise ConfigError(
                "temporal_smoothness compares each action with the next one, but the storage gives "
                f"transitions of up to {num_steps} steps; set storage.n_step to 1, or "
                "temporal_smoothness to 0"
            )


def _is_ever_positive(value: Scheduled) -> bool:
    """Return whether a hyper-parameter is above 0 at any time of the run."""
    schedule = as_schedule(value)
    return not schedule.is_constant or schedule.value(0.0) > 0.0
