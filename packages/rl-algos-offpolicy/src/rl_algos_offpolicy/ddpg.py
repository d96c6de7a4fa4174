r"""Deep deterministic policy gradient.

Source: Lillicrap et al. 2016, https://arxiv.org/abs/1509.02971, Algorithm 1.

(1) $y = r + \gamma\,(1 - d)\,\min_i Q_{\theta'_i}(s', \pi_{\phi'}(s'))$, kept between
    $-c$ and $c$ with ``clip_return`` c, and at most 0 with ``clip_positive_returns``

(2) $L^Q = \sum_i \mathbb{E}[(Q_{\theta_i}(s, a) - y)^2]$

(3) $L^\pi = -\mathbb{E}[Q_{\theta_1}(s, \pi_\phi(s))]$

Deviations from the paper: any number of critics, one by default; actions are in [-1, 1], so that
noise is in units of half the range; y discounts several rewards when the storage gathers several
steps.

(2) and (3) are in `rl_algos_offpolicy.deterministic`.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rl_algos_offpolicy.actor import next_obs_inputs
from rl_algos_offpolicy.config import off_policy_recipe
from rl_algos_offpolicy.critics.critics import bootstrapped_target
from rl_algos_offpolicy.deterministic import DeterministicAlgorithm, DeterministicConfig
from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.batch import ReplayBatch
from rl_core.config import NonNegative
from rl_core.errors import ConfigError
from rl_core.gradients import Noise, ParameterGroup


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
        """Give policy and critics an optimiser each, with their own weight decay."""
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
