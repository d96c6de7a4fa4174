r"""Twin delayed deep deterministic policy gradient.

Source: Fujimoto et al. 2018, https://arxiv.org/abs/1802.09477, Algorithm 1.

(1) $y = r + \gamma\,(1 - d)\,\min_i Q_{\theta'_i}(s', \tilde a)$ with
    $\tilde a = \pi_{\phi'}(s') + \mathrm{clip}(N(0, \tilde\sigma), -c, c)$, kept between
    ``-clip_return`` and ``clip_return`` where that is set, and at most 0 with
    ``clip_positive_returns``

(2) $L^Q = \sum_i \mathbb{E}[(Q_{\theta_i}(s, a) - y)^2]$

(3) $L^\pi = -\mathbb{E}[Q_{\theta_1}(s, \pi_\phi(s))]$, every so many steps of (2), when the
    targets move too

Deviations from the paper: actions are in [-1, 1], so that noise is in units of half the range; y
discounts several rewards when the storage gathers several steps.

(2) and (3) are those of DDPG, in `rl_algos_offpolicy.ddpg`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_algos_offpolicy.actor import next_obs_inputs
from rl_algos_offpolicy.config import off_policy_recipe
from rl_algos_offpolicy.critics.critics import bootstrapped_target
from rl_algos_offpolicy.ddpg import DeterministicAlgorithm, DeterministicConfig
from rl_core.algorithm import DefaultRecipe, EnvSpec
from rl_core.batch import ReplayBatch
from rl_core.config import Count, ScheduledNonNegative, ScheduledPositive
from rl_core.gradients import Noise


@dataclass(frozen=True, kw_only=True, slots=True)
class TD3Config(DeterministicConfig):
    """Options of `TD3`.

    Attributes:
        policy_delay: gradient steps of the critics per step of the policy and the targets.
        target_noise: standard deviation of the noise on target actions (σ̃).
        target_noise_clip: bound of the noise on target actions (c).
    """

    policy_delay: Count = 2
    target_noise: ScheduledNonNegative = 0.2
    target_noise_clip: ScheduledPositive = 0.5

    def __post_init__(self) -> None:
        DeterministicConfig.__post_init__(self)
        if self.target_noise == 0:
            self.refuse(
                "bounds the noise on target actions, and target_noise=0 leaves it out; leave "
                "target_noise_clip out too",
                "target_noise_clip",
            )


class TD3(DeterministicAlgorithm[TD3Config]):
    """Twin delayed DDPG.

    Args:
        actor: an `OffPolicyActor` with a deterministic policy.
        config: options.
        add_ons: extra terms for the policy loss.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with a deterministic policy and two critics."""
        return off_policy_recipe({"policy": "deterministic"})

    @property
    def policy_every(self) -> int:
        """Gradient steps of the critics per step of the policy and of all targets."""
        return self.config.policy_delay

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        """Draw what smooths the target."""
        return {
            "target": torch.randn(batch.action.shape, generator=self.generator, device=self.device)
        }

    @torch.no_grad()
    def target(self, batch: ReplayBatch, noise: Noise) -> Tensor:
        """Eq. (1), shape `(N,)`."""
        bound = self.hyper["target_noise_clip"]
        smoothing = (self.hyper["target_noise"] * noise["target"]).clamp(-bound, bound)
        policy = self.target_policy(next_obs_inputs(self.target_policy, batch))
        action = (policy.mode() + smoothing).clamp(-1.0, 1.0)  # ã
        next_obs = next_obs_inputs(self.target_critics, batch)
        min_q = self.target_critics(next_obs, action).amin(0)
        return self.clip_returns(bootstrapped_target(batch, min_q, self.hyper))  # y
