r"""Deep Q-learning, with its usual improvements as options.

Source: Mnih et al. 2015, https://doi.org/10.1038/nature14236; double: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461.

(1) $y = r + \gamma\,(1 - d) \max_{a'} Q_{\theta'}(s', a')$

(2) $y = r + \gamma\,(1 - d)\, Q_{\theta'}(s', \arg\max_{a'} Q_\theta(s', a'))$ when double

(3) $L = \mathbb{E}[h(Q_\theta(s, a) - y)]$ with h Huber's loss or half the square

Deviations from the paper: targets are copied every so many gradient steps, or move softly; y
discounts several rewards when the storage gathers several steps.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_algos_offpolicy.actor import OffPolicyActor
from rl_algos_offpolicy.config import OffPolicyConfig
from rl_algos_offpolicy.defaults import off_policy_recipe
from rl_algos_offpolicy.losses import absolute_error, bootstrapped_target, weighted_mean
from rl_core.actor import ActionOutput
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, Scheduled, UpdateSchedule
from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup, TargetNetwork
from rl_core.ranges import check_choice, check_ranges
from rl_core.schedules import Piecewise
from rl_core.types import Observation, State

ErrorLoss = Literal["huber", "square"]
"""h of Eq. (3)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DQNConfig(OffPolicyConfig):
    """Options of `DQN`.

    Attributes:
        learning_rate: of the critics.
        epsilon: probability of a uniformly random action while collecting.
        double: Eq. (2) instead of Eq. (1).
        loss: h of Eq. (3).
        clip_reward: bound of scaled rewards that are learned from; None does not bound them.
        tau: how far the target moves; 1 copies.
        target_update_every: gradient steps between its moves.
    """

    learning_rate: Scheduled = 1e-3
    epsilon: Scheduled = field(default_factory=lambda: Piecewise(((0.0, 1.0), (0.1, 0.05))))
    double: bool = True
    loss: ErrorLoss = "huber"
    clip_reward: Scheduled | None = None
    tau: Scheduled = 1.0
    target_update_every: int = 500
    max_grad_norm: Scheduled | None = 10.0
    mini_batch_size: int = 128

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        check_choice(self, "loss", get_args(ErrorLoss))
        check_ranges(
            self,
            unit=("epsilon", "tau"),
            positive=("clip_reward",),
            not_negative=("learning_rate",),
            counts=("target_update_every",),
        )


class DQN(Algorithm[DQNConfig, ReplayBatch]):
    """Deep Q-learning.

    Args:
        actor: an `OffPolicyActor` with a greedy policy.
        config: options.

    Raises:
        ConfigError: when the policy is not greedy, or add-ons are given: there is no policy loss.
    """

    actor: OffPolicyActor

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make the target critics."""
        actor = self.actor
        if not isinstance(actor, OffPolicyActor) or actor.config.policy != "greedy":
            raise ConfigError(
                "DQN needs an OffPolicyActor with a greedy policy; set actor.policy to 'greedy'"
            )
        if len(self.add_ons):
            raise ConfigError("DQN has no policy loss to add terms to; leave add_ons out")
        self.target_critics = copy.deepcopy(actor.critics)
        return {"target_critics": self.target_critics}

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Take some gradient steps after every few environment transitions."""
        return self.config.schedule

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from one environment, with one critic that actions are chosen by."""
        return off_policy_recipe(
            {"policy": "greedy", "num_critics": 1, "hidden_sizes": [120, 84]},
            storage={"size": 100_000},
        )

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn the critics."""
        return (
            ParameterGroup(
                name="critic",
                modules=("actor.critics",),
                max_grad_norm=None if self.config.max_grad_norm is None else "max_grad_norm",
                optimizer=self.config.optimizer,
            ),
        )

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Let the target critics follow the critics."""
        return (
            TargetNetwork(
                module="target_critics",
                source="actor.critics",
                tau="tau",
                every=self.config.target_update_every,
            ),
        )

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw, for each action, two uniform numbers: whether to explore, and how."""
        return torch.rand((*batch_shape, 2), generator=generator, device=self.device)

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Take a random action with probability ε, and else the one of highest value."""
        whether, which = noise.unbind(-1)
        greedy = self.actor.critics(observation)[0].argmax(-1)
        # A draw near 1 may round up to the number of actions.
        random = (which * self.actor.num_actions).long().clamp(max=self.actor.num_actions - 1)
        action = torch.where(whether < self.hyper["epsilon"], random, greedy)
        return ActionOutput(action, self.actor.to_env_action(action), None, state)

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (3)."""
        target = self.target(batch)
        values = self.actor.q_values(batch.observation, batch.action, {})
        goal = target.expand_as(values)
        error = (
            F.huber_loss(values, goal, reduction="none")
            if self.config.loss == "huber"
            else 0.5 * (values - goal).square()
        )
        loss = weighted_mean(error.sum(0), batch)
        metrics = {
            "loss/critic": loss,
            "value/mean": values.mean(),
            "policy/epsilon": self.hyper["epsilon"],
        }
        return LossOutput(loss, metrics, {"td_error": absolute_error(values.detach(), target)})

    @torch.no_grad()
    def target(self, batch: ReplayBatch) -> Tensor:
        """Eq. (1) or (2), shape `(N,)`; of several critics, the smallest value counts."""
        following = batch.next_observation
        values = self.target_critics(following).amin(0)
        if self.config.double:
            best = self.actor.critics(following)[0].argmax(-1, keepdim=True)
            next_value = values.gather(-1, best).squeeze(-1)
        else:
            next_value = values.amax(-1)
        return bootstrapped_target(
            batch, next_value, self.hyper, clips_reward=self.config.clip_reward is not None
        )
