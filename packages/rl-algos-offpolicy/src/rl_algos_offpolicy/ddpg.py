r"""Deep deterministic policy gradient.

Source: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, Algorithm 1.

(1) $y = r + \gamma\,(1 - d)\,\min_i Q_{\theta'_i}(s', \pi_{\phi'}(s'))$, kept between
    $-c$ and $c$ with ``clip_return`` c, and at most 0 with ``clip_positive_returns``

(2) $L^Q = \sum_i \mathbb{E}[(Q_{\theta_i}(s, a) - y)^2]$

(3) $L^\pi = -\mathbb{E}[Q_{\theta_1}(s, \pi_\phi(s))]$

Deviations from the paper: any number of critics, one by default; actions are in [-1, 1], so that
noise is in units of half the range; y discounts several rewards when the storage gathers several
steps.

`DeterministicAlgorithm` has what TD3 shares: (2), (3), exploration and target networks.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Generic, TypeVar

import torch
from torch import Tensor, nn

from rl_algos_offpolicy.actor import check_policy, detached, next_obs_inputs, obs_inputs
from rl_algos_offpolicy.actor_critic import ActorCritic
from rl_algos_offpolicy.config import OffPolicyConfig, off_policy_recipe
from rl_algos_offpolicy.critics.critics import (
    absolute_error,
    bootstrapped_target,
    squared_error_loss,
    weighted_mean,
)
from rl_algos_offpolicy.exploration_noise import (
    ExplorationNoise,
    OrnsteinUhlenbeck,
    draw_exploration_noise,
)
from rl_core.actor import ActionOutput
from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.batch import ReplayBatch
from rl_core.config import (
    Needs,
    NonNegative,
    NonNegativeInt,
    Positive,
    ScheduledFraction,
    ScheduledNonNegative,
    ScheduledPositive,
)
from rl_core.errors import ConfigError
from rl_core.gradients import (
    LossOutput,
    Noise,
    ParameterGroup,
    TargetNetwork,
    call_frozen,
    masked_mean,
)
from rl_core.stateful import StateReader
from rl_core.types import Observation, State, StateDict


@dataclass(frozen=True, kw_only=True, slots=True)
class DeterministicConfig(OffPolicyConfig):
    """Options that algorithms with a deterministic policy share.

    Attributes:
        policy_learning_rate: learning rate of the policy.
        critic_learning_rate: learning rate of the critics.
        tau: Polyak coefficient of the target networks: how far they move in each of their steps.
        exploration_noise: noise added to actions in [-1, 1] while collecting; ``ou`` is an
            Ornstein-Uhlenbeck process.
        exploration_std: standard deviation of the noise, σ; of ``ou`` that of its increments per
            square root of time, so that the noise spreads from 0 to σ / sqrt(2 ``ou_theta``).
        ou_theta: rate at which the process ``ou`` is pulled back to zero; None takes 0.15.
        ou_dt: time between two steps of the process ``ou``; None takes 0.01.
        clip_return: bound of the critics' targets in both directions; None disables it.
        clip_positive_returns: bound the critics' targets by 0 from above, for tasks without
            positive rewards; needs no ``clip_return``.
    """

    policy_learning_rate: ScheduledNonNegative = 1e-3
    critic_learning_rate: ScheduledNonNegative = 1e-3
    tau: ScheduledFraction = 0.005
    exploration_noise: ExplorationNoise = "gaussian"
    exploration_std: Annotated[
        ScheduledNonNegative, Needs("exploration_noise", "gaussian", "ou", "uniform")
    ] = 0.1
    ou_theta: Annotated[Positive | None, Needs("exploration_noise", "ou")] = None
    ou_dt: Annotated[Positive | None, Needs("exploration_noise", "ou")] = None
    clip_return: ScheduledPositive | None = None
    clip_positive_returns: bool = False
    start_steps: NonNegativeInt = 1000

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        self.ou_process()  # refuses steps that are too long

    def ou_process(self) -> OrnsteinUhlenbeck:
        """Return a new process for the noise ``"ou"``."""
        return OrnsteinUhlenbeck(self.ou_theta or 0.15, self.ou_dt or 0.01)


ConfigT = TypeVar("ConfigT", bound=DeterministicConfig)


class DeterministicAlgorithm(ActorCritic[ConfigT], Generic[ConfigT]):
    """Base of algorithms whose deterministic policy maximizes a critic's value.

    A subclass writes the target y of Eq. (2).

    Args:
        actor: an `OffPolicyActor` with a deterministic policy.
        config: options.
        add_ons: extra terms for the policy loss.

    Raises:
        ConfigError: when the policy is not deterministic, or an option has no effect.
    """

    def resolve_config(self, config: ConfigT) -> ConfigT:
        """Refuse an actor without a deterministic policy."""
        check_policy(self.actor, "deterministic", type(self).__name__)
        return config

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make the target policy and the target critics."""
        actor = self.actor
        assert actor.policy is not None
        self.policy = actor.policy
        self.target_policy = copy.deepcopy(actor.policy)
        self.target_critics = copy.deepcopy(actor.critics)
        self._process = self.config.ou_process()
        return {"target_policy": self.target_policy, "target_critics": self.target_critics}

    @abstractmethod
    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        """Compute what the critics learn, shape `(N,)`, without gradient.

        Args:
            batch: transitions.
            noise: see `draw_update_noise`.
        """

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Sum both losses, or take that which is due."""
        parts = {"critic": self.critic_loss, "policy": self.policy_loss}
        return self.sum_due(parts, batch, noise)

    def critic_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (2): the squared errors of all critics."""
        target = self.target(batch, noise)
        critics = self.actor.critics
        values = critics(obs_inputs(critics, batch), batch.action)
        loss = squared_error_loss(values, target, batch)
        metrics = {"loss/critic": loss, "value/mean": masked_mean(values.mean(0), batch.mask)}
        return LossOutput(loss, metrics, {"td_error": absolute_error(values.detach(), target)})

    def policy_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (3), and the add-ons' terms."""
        critics = self.actor.critics
        policy = self.policy(obs_inputs(self.policy, batch))
        obs = detached(obs_inputs(critics, batch))
        (q_pi,) = call_frozen(critics, obs, policy.mode(), None, slice(0, 1))
        loss = -weighted_mean(q_pi, batch)
        metrics = {"loss/policy": loss}
        added, more = self.add_on_terms(batch, policy, metrics)
        return LossOutput(loss + added, {**metrics, **more})

    @property
    def needs_episode_start(self) -> bool:
        """Whether noise that is a process, or a recurrent state, starts anew with every episode."""
        return self.config.exploration_noise == "ou" or super().needs_episode_start

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Let the targets follow policy and critics, at the policy's pace."""
        every = self.policy_every
        return (
            TargetNetwork(module="target_policy", source="actor.policy", tau="tau", every=every),
            TargetNetwork(module="target_critics", source="actor.critics", tau="tau", every=every),
        )

    def clip_returns(self, returns: Tensor) -> Tensor:
        """Keep what the critics learn within ``clip_return`` and ``clip_positive_returns``."""
        if self.config.clip_return is not None:
            bound = self.hyper["clip_return"]
            returns = returns.clamp(-bound, bound)
        return returns.clamp(max=0.0) if self.config.clip_positive_returns else returns

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw the noise of exploration, or its increments."""
        shape = (*batch_shape, *self.actor.action_spec.shape)
        return draw_exploration_noise(self.config.exploration_noise, shape, generator)

    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions, turning increments into a process where that is asked for."""
        if self.config.exploration_noise == "ou" and noise is not None and not deterministic:
            assert episode_start is not None
            noise = self._process.step(noise, episode_start)
        return super().acting_step(observation, state, noise, deterministic, episode_start)

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Add noise to the policy's action and clip to [-1, 1]."""
        distribution, after = self.actor.distribution(observation, state, episode_start)
        action = distribution.mode()
        action = (action + self.hyper["exploration_std"] * noise).clamp(-1.0, 1.0)
        after = self.actor.remember_action(observation, action, state, after, episode_start)
        return ActionOutput(action, self.actor.to_env_action(action), after)

    def explorer(self) -> Callable[..., ActionOutput]:
        """Return `explore`, with increments turned into a process that begins anew."""
        if self.config.exploration_noise != "ou":
            return self.explore
        process = self.config.ou_process()

        def explore(
            observation: Observation, state: State, noise: Tensor, episode_start: Tensor
        ) -> ActionOutput:
            noise = process.step(noise, episode_start)
            return self.explore(observation, state, noise, episode_start)

        return explore

    def more_state(self) -> StateDict:
        """Return where the noise process is."""
        return {"process": self._process.state}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
        saved = StateReader(state, "algorithm/more").tensor("process")
        self._process.state = saved.to(self.device, copy=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class DDPGConfig(DeterministicConfig):
    """Options of `DDPG`.

    Attributes:
        policy_weight_decay: weight of the L2 penalty on the policy.
        critic_weight_decay: weight of the L2 penalty on the critics.
    """

    policy_weight_decay: NonNegative = 0.0
    critic_weight_decay: NonNegative = 0.0

    def __post_init__(self) -> None:
        DeterministicConfig.__post_init__(self)
        if self.optimizer.weight_decay:
            raise ConfigError(
                "give policy_weight_decay and critic_weight_decay instead of optimizer.weight_decay"
            )


class DDPG(DeterministicAlgorithm[DDPGConfig]):
    """Deep deterministic policy gradient.

    Args:
        actor: an `OffPolicyActor` with a deterministic policy.
        config: options.
        add_ons: extra terms for the policy loss.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with a deterministic policy and one critic."""
        return off_policy_recipe({"policy": "deterministic", "num_critics": 1})

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give policy and critics an optimizer each, with their own weight decay."""
        config = self.config
        decays = {"policy": config.policy_weight_decay, "critic": config.critic_weight_decay}
        return tuple(
            replace(group, optimizer=replace(group.optimizer, weight_decay=decays[group.name]))
            for group in super().parameter_groups()
        )

    @torch.no_grad()
    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        """Eq. (1), shape `(N,)`."""
        action = self.target_policy(next_obs_inputs(self.target_policy, batch)).mode()
        next_obs = next_obs_inputs(self.target_critics, batch)
        min_q = self.target_critics(next_obs, action).amin(0)
        return self.clip_returns(bootstrapped_target(batch, min_q, self.hyper))
