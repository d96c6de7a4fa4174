r"""MAML whose meta-update is TRPO's constrained step.

Source: Finn et al. 2017, https://arxiv.org/abs/1703.03400, section 5.3.

With the adapted policies $\theta_i^K$ of `rl_meta.maml`, and the policies $\pi_{old,i}$ that
collected the last rollouts:

(1) $\min_\theta -\frac1M \sum_i \mathbb{E}_t[r_t A_t]$ where
    $\frac1M \sum_i \mathbb{E}_t[KL(\pi_{old,i} \| \pi_{\theta_i^K})] \le \delta$

$r_t$ is the probability ratio between the adapted policy and the one that collected.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import vmap

from rl_core.batch import RolloutBatch
from rl_core.gradients import LossOutput, Noise, ParameterGroup, masked_mean
from rl_core.gradients.trust_region import Parameters, constrained_step
from rl_core.nn.distributions import Distribution, from_columns, to_columns
from rl_core.types import Observation, map_observation
from rl_meta.config import MAMLTRPOConfig
from rl_meta.maml import MAML
from rl_meta.rollouts import one_rollout


class MAMLTRPO(MAML[MAMLTRPOConfig]):
    """MAML whose meta-update is TRPO's constrained step.

    Args:
        actor: a policy that shares no parameters with its value function, which is not used.
        config: options.
    """

    exchanges_gradients: ClassVar[bool] = False

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn nothing by gradient steps."""
        return ()

    def constant_modules(self) -> tuple[str, ...]:
        """Leave everything to the constrained step."""
        return ("actor", "step_sizes")

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """The loss of Eq. (1), with the divergence among the metrics."""
        policies = self._policies(batch, self.policy_parameters(), self._step_sizes)
        loss, kl = self._surrogate(batch, self._unadapted_policies(batch), policies)
        return LossOutput(loss, {"loss/policy": loss, "policy/kl": kl})

    def _policies(
        self, batch: RolloutBatch, parameters: Parameters, step_sizes: Iterable[Tensor]
    ) -> Parameters:
        """Return the adapted policies in the last rollout, as columns of all M N samples."""
        adapted = self._adapted_to(batch, parameters, step_sizes)
        last = one_rollout(batch, -1)

        def columns(at: Parameters, observation: Observation, mask: Tensor) -> Parameters:
            distribution = self._policy.distribution(at, observation)
            return to_columns(distribution, tuple(mask.shape))

        by_task = vmap(columns)(adapted, last.observation, last.mask)
        return {name: column.flatten(0, 1) for name, column in by_task.items()}

    @torch.no_grad()
    def _unadapted_policies(self, batch: RolloutBatch) -> Distribution:
        """Return θ's policies in the last rollout's M N samples, for their class and masks."""
        observation = one_rollout(batch, -1).observation
        flat = map_observation(lambda part: part.flatten(0, 1), observation)
        return self.actor.distribution(flat, {})[0]

    def _surrogate(
        self, batch: RolloutBatch, like: Distribution, policies: Parameters
    ) -> tuple[Tensor, Tensor]:
        """Return loss and divergence of Eq. (1) of policies from `_policies`, each 0-dim."""
        last = one_rollout(batch, -1)
        now = from_columns(like, policies)
        before = from_columns(like, {n: part.flatten(0, 1) for n, part in last.extras.items()})
        log_prob = now.log_prob(last.action.flatten(0, 1)).view_as(last.log_prob)
        ratio = (log_prob - last.log_prob).exp()
        kl = before.kl_divergence(now).view_as(last.mask)
        by_task = vmap(masked_mean)
        loss = -by_task(ratio * last.advantage, last.mask).mean()
        return loss, by_task(kl, last.mask).mean()

    def meta_step(self, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Move the meta-parameters as far as Eq. (1) allows, or not at all.

        Products with the Hessian go through the policies' outputs: it is that of the divergence in
        these, between two derivatives of the outputs, which is exact at the start of the step.
        """
        config, named = self.config, self.named_parameters()
        sizes = [name for name in named if name.startswith("step_sizes.")]
        learned = [name for name in (*self._names, *sizes) if named[name].requires_grad]
        fixed = {name: named[name] for name in (*self._names, *sizes) if name not in learned}

        def adapt(at: Parameters) -> Parameters:
            everything = {**fixed, **at}
            return self._policies(batch, everything, [everything[name] for name in sizes])

        step = constrained_step(
            partial(self._surrogate, batch, self._unadapted_policies(batch)),
            {name: named[name] for name in learned},
            float(self.hyper["max_kl"]),
            adapt=adapt,
            damping=config.cg_damping,
            num_cg_steps=config.cg_steps,
            num_backtracks=config.num_backtracks,
        )
        if not step.is_finite:
            self.gradients.guard.refuse(
                self.gradients.count + 1, batch, "the meta-loss or its gradient is not finite"
            )
        with torch.no_grad():
            for name in learned:
                named[name].copy_(step.parameters[name])
        self.gradients.count += 1
        return {
            "loss/policy": step.loss,
            "policy/kl": step.kl,
            "policy/step_fraction": torch.tensor(step.fraction),
        }
