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

REDQ (Chen et al. 2021, https://arxiv.org/abs/2101.05982, Algorithm 1) takes in (1) the least of a
few of many critics, drawn anew for each step, and in (3), by which it steps once per update, the
mean of all. DroQ (Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034, Algorithm 2) has two
critics, which drop out and normalise their hidden layers in (1), (2) and (3).

Deviations from the paper: the steps of (2), (3) and (4) are taken together, from the same
parameters, not one after the other; (4) is the loss in log α that implementations use, whose
gradient differs by the factor α; y discounts several rewards when the storage gathers several
steps.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor, nn

from rl_algos_offpolicy._refusals import check_single_steps
from rl_algos_offpolicy.actor import OffPolicyActor
from rl_algos_offpolicy.critics.critics import Critics, of_action
from rl_algos_offpolicy.defaults import off_policy_recipe
from rl_algos_offpolicy.losses import (
    absolute_error,
    bootstrapped_target,
    squared_error_loss,
    weighted_mean,
)
from rl_algos_offpolicy.memory import (
    Seen,
    constant,
    current,
    current_and_following,
    following,
)
from rl_algos_offpolicy.sac_config import SACConfig, check_actor
from rl_algos_offpolicy.temperature import Temperature, default_target_entropy
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, Scheduled, UpdateSchedule
from rl_core.batch import ReplayBatch, masked_mean
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup, TargetNetwork, call_frozen
from rl_core.nn.distributions import Categorical, Distribution
from rl_core.storage import Storage

_SMOOTHNESS = ("temporal_smoothness", "spatial_smoothness")


class SAC(Algorithm[SACConfig, ReplayBatch]):
    """Soft actor-critic for real and discrete actions.

    Args:
        actor: an `OffPolicyActor` with a stochastic policy.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when the policy is not stochastic, smoothness is asked of actions or
            observations that have no distances, or an option has no effect.
    """

    actor: OffPolicyActor

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make the target critics and the temperature."""
        config = self.config
        self._is_smoothed = self._may_count(*_SMOOTHNESS)
        check_actor(self.actor, config, is_smoothed=self._is_smoothed)
        assert self.actor.policy is not None
        self.policy = self.actor.policy
        self.target_critics = copy.deepcopy(self.actor.critics)
        self.temperature = Temperature(config.initial_temperature, config.learn_temperature)
        self.temperature.to(self.device)
        self._target_entropy = (
            default_target_entropy(self.actor)
            if config.target_entropy is None
            else config.target_entropy
        )
        return {"target_critics": self.target_critics, "temperature": self.temperature}

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Take some gradient steps after every few environment transitions."""
        return self.config.schedule

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with a stochastic policy and two critics."""
        return off_policy_recipe({"policy": "stochastic"})

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give policy, critics and temperature an optimiser each, the last without decay."""
        names = {"policy": ("actor.policy", "add_ons"), "critic": ("actor.critics",)}
        if self.config.learn_temperature:
            names["temperature"] = ("temperature",)
        bound = self.if_set("max_grad_norm")
        optimizer = self.config.optimizer
        # Decay would pull log(α) to 0, which is α = 1, whatever the entropy is.
        without_decay = replace(optimizer, weight_decay=0.0)
        return tuple(
            ParameterGroup(
                name=name,
                modules=modules,
                learning_rate=f"{name}_learning_rate",
                max_grad_norm=bound,
                optimizer=without_decay if name == "temperature" else optimizer,
                every=1 if name == "critic" else self.config.policy_delay,
            )
            for name, modules in names.items()
        )

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Let the target critics follow the critics."""
        return (TargetNetwork(module="target_critics", source="actor.critics", tau="tau"),)

    def check_storage(self, storage: Storage[ReplayBatch]) -> None:
        """Refuse transitions of several steps where successive actions shall be alike."""
        self._check_steps(storage.n_step)

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: Scheduled
    ) -> None:
        """Change a hyper-parameter; Eq. (5) does not begin in the course of a run.

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

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        """Draw for the actions now and next, the observations nearby, and the critics' parts.

        Raises:
            ConfigError: when successive actions shall be alike, and the batch skips those between.
        """
        self._check_steps(batch.reward.shape[-1])
        shape, generator = tuple(batch.mask.shape), self.generator
        noise = {name: self.actor.draw_noise(shape, generator) for name in ("now", "next")}
        if self._is_smoothed:
            assert isinstance(batch.observation, Tensor)
            noise["nearby"] = torch.randn(
                batch.observation.shape, generator=generator, device=self.device
            )
        if self.config.num_target_critics is not None:
            drawn = torch.randperm(
                self.actor.config.num_critics, generator=generator, device=self.device
            )
            noise["chosen"] = drawn[: self.config.num_target_critics]
        if self.actor.config.critic_dropout:
            assert isinstance(self.actor.critics, Critics)
            for name in ("dropout/values", "dropout/target", "dropout/policy"):
                noise[name] = self.actor.critics.draw_noise(shape, generator)
        return noise

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (2) for the critics and, when due, (3) and (5) for the policy, (4) for α."""
        acting, after = current_and_following(self.policy, batch)
        target = self.target(batch, noise, after)
        seen = current(self.actor.critics, batch)
        values = self.values(seen, batch.action, noise.get("dropout/values"))
        total = critic_term = squared_error_loss(values, target, batch)
        metrics = {
            "loss/critic": critic_term,
            "value/mean": masked_mean(values.mean(0), batch.mask),
            "policy/temperature": self.temperature(),
        }
        if self.is_due("policy"):
            term, more = self.policy_loss(batch, acting, constant(seen), noise)
            total, metrics = total + term, {**metrics, **more}
        return LossOutput(total, metrics, {"td_error": absolute_error(values.detach(), target)})

    def values(self, seen: Seen, action: Tensor, dropout: Tensor | None) -> Tensor:
        """Return what every critic thinks of the actions that were taken, `(C, N)`."""
        values: Tensor
        if not self.actor.is_discrete:
            values = self.actor.critics(seen, action, dropout)
            return values
        values = self.actor.critics(seen, None, dropout)
        return of_action(values, action)

    @torch.no_grad()
    def target(self, batch: ReplayBatch, noise: Noise, after: Seen | None = None) -> Tensor:
        """Eq. (1), shape `(N,)`.

        Args:
            batch: transitions.
            noise: see `draw_update_noise`.
            after: what the policy is given of what follows; None finds it out.
        """
        alpha, critics = self.temperature(), self.target_critics
        chosen, dropout = noise.get("chosen"), noise.get("dropout/target")
        if chosen is not None and dropout is not None:
            dropout = dropout.index_select(-2, chosen)
        after = following(self.policy, batch) if after is None else after
        distribution: Distribution = self.policy(after)
        seen = following(critics, batch)
        if self.actor.is_discrete:
            probabilities, log_prob = _all_actions(distribution)
            values = critics(seen, None, dropout, chosen).amin(0)
            next_value = (probabilities * (values - alpha * log_prob)).sum(-1)
        else:
            action, log_prob = distribution.sample_with_log_prob(noise["next"])
            values = critics(seen, action, dropout, chosen).amin(0)
            next_value = values - alpha * log_prob
        return bootstrapped_target(batch, next_value, self.hyper)

    def policy_loss(
        self, batch: ReplayBatch, acting: Seen, seen: Seen, noise: Noise
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Eq. (3), (4) and (5) and the add-ons' terms, 0-dim, and the metrics of each.

        Args:
            batch: what is learned from.
            acting: what the policy is given of it.
            seen: what the critics are given of it, as a constant.
            noise: see `draw_update_noise`.
        """
        distribution: Distribution = self.policy(acting)
        term, log_prob = self.policy_terms(batch, seen, distribution, noise)
        metrics = {
            "loss/policy": term,
            "policy/entropy": -masked_mean(log_prob.detach(), batch.mask),
        }
        added, more = self.add_on_terms(batch, distribution, metrics)
        total = term + added
        if self._is_smoothed:
            smoothness = self.smoothness(batch, distribution.mode(), noise["nearby"])
            metrics["loss/smoothness"] = smoothness
            total = total + smoothness
        if self.config.learn_temperature:
            excess = masked_mean(log_prob.detach() + self._target_entropy, batch.mask)
            metrics["loss/temperature"] = temperature_term = -self.temperature.log * excess
            total = total + temperature_term
        return total, {**metrics, **more}

    def policy_terms(
        self, batch: ReplayBatch, seen: Seen, distribution: Distribution, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Eq. (3), 0-dim, and the log-probabilities or minus the entropies, shape `(N,)`.

        Args:
            batch: whose weights and mask are used.
            seen: what the critics are given of it, as a constant.
            distribution: over actions.
            noise: see `draw_update_noise`.
        """
        alpha, critics = self.temperature(), self.actor.critics
        dropout = noise.get("dropout/policy")
        if self.actor.is_discrete:
            probabilities, log_prob = _all_actions(distribution)
            values = self._climbed(call_frozen(critics, seen, None, dropout))
            objective = (probabilities * (alpha * log_prob - values)).sum(-1)
            return weighted_mean(objective, batch), (probabilities * log_prob).sum(-1)
        action, log_prob = distribution.sample_with_log_prob(noise["now"])
        values = self._climbed(call_frozen(critics, seen, action, dropout))
        return weighted_mean(alpha * log_prob - values, batch), log_prob

    def _climbed(self, values: Tensor) -> Tensor:
        return values.amin(0) if self.config.policy_value == "least" else values.mean(0)

    def smoothness(self, batch: ReplayBatch, here: Tensor, noise: Tensor) -> Tensor:
        """Eq. (5), 0-dim; each action is compared with that of its own successor and neighbour."""
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

    def _check_steps(self, num_steps: int) -> None:
        if self._is_smoothed and self._may_count("temporal_smoothness"):
            check_single_steps(
                num_steps,
                why="temporal_smoothness compares each action with the next one",
                remedy="set storage.n_step to 1, or temporal_smoothness to 0",
            )

    def _may_count(self, *names: str) -> bool:
        """Return whether one of these hyper-parameters is above 0 at some time of the run."""
        schedules = [self.schedules[name] for name in names]
        return any(not each.is_constant or each.value(0.0) > 0.0 for each in schedules)


def _all_actions(distribution: Distribution) -> tuple[Tensor, Tensor]:
    """Return the probabilities of all actions and their logarithms, each `(*batch, n)`."""
    assert isinstance(distribution, Categorical)
    log_prob = torch.log_softmax(distribution.logits, -1)
    return log_prob.exp(), log_prob
