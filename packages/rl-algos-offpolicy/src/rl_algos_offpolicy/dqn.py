r"""Deep Q-learning, with its usual improvements as options, and Rainbow, which has them all.

Source: Mnih et al. 2015, https://doi.org/10.1038/nature14236; double: van Hasselt et al. 2016,
https://arxiv.org/abs/1509.06461; noisy networks: Fortunato et al. 2018,
https://arxiv.org/abs/1706.10295, Eq. (15) and (16).

(1) $y = r + \gamma\,(1 - d) \max_{a'} Q_{\theta'}(s', a')$

(2) $y = r + \gamma\,(1 - d)\, Q_{\theta'}(s', \arg\max_{a'} Q_\theta(s', a'))$ when double

(3) $L = \mathbb{E}[h(Q_\theta(s, a) - y)]$ with h Huber's loss or half the square

Where the actor's critics learn a distribution of returns, Q is its mean, the distribution that
follows is moved like y, and the loss is that of `rl_algos_offpolicy.critics.distributional`. Where
they are noisy, θ, θ' and the θ that chooses in (2) each have noise of their own, one sample per
batch.

Deviations from the paper: targets follow softly with every gradient step unless told to be copied
every so many; y discounts several rewards when the storage gathers several steps.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_algos_offpolicy.actor import (
    OffPolicyActor,
    check_policy,
    next_obs_inputs,
    obs_and_next_obs_inputs,
)
from rl_algos_offpolicy.config import OffPolicyConfig, off_policy_recipe
from rl_algos_offpolicy.critics.critics import (
    bootstrapped_target,
    of_action,
    scaled_reward,
    weighted_mean,
)
from rl_algos_offpolicy.recurrent import NetworkInputs
from rl_core.actor import ActionOutput
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec
from rl_core.batch import ReplayBatch
from rl_core.config import (
    Count,
    Piecewise,
    ScheduledFraction,
    ScheduledNonNegative,
    ScheduledPositive,
)
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup, TargetNetwork, masked_mean
from rl_core.types import Observation, State

ErrorLoss = Literal["huber", "square"]
"""h of Eq. (3)."""

_DEFAULT_EPSILON = Piecewise(((0.0, 1.0), (0.1, 0.05)))
"""The probability of a random action when none is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DQNConfig(OffPolicyConfig):
    """Options of `DQN`.

    Attributes:
        learning_rate: learning rate of the critics.
        epsilon: probability of a uniformly random action while collecting; None takes 1 to 0.05
            over the first tenth of the run, and 0 where the critics are noisy.
        double: let the online critics choose the target's action, and the target critics only
            judge it, which overestimates less (Eq. 2).
        loss: loss of the errors: Huber's or half the square (h); critics that learn a distribution
            have a loss of their own.
        clip_reward: bound of scaled rewards in both directions; None disables it.
        target_update_every: gradient steps between updates of the target critics.
        tau: Polyak coefficient of these updates, where 1 copies the critics; None takes 0.01 where
            they come with every gradient step, and 1 where they do not.
    """

    learning_rate: ScheduledNonNegative = 1e-3
    epsilon: ScheduledFraction | None = None
    double: bool = True
    loss: ErrorLoss = "huber"
    clip_reward: ScheduledPositive | None = None
    target_update_every: Count = 1
    tau: ScheduledFraction | None = None
    max_grad_norm: ScheduledPositive | None = 10.0
    minibatch_size: Count = 128


class DQN(Algorithm[DQNConfig, ReplayBatch]):
    """Deep Q-learning.

    Args:
        actor: an `OffPolicyActor` with a greedy policy.
        config: options.

    Raises:
        ConfigError: when the policy is not greedy, an option does not fit the actor's critics, or
            add-ons are given, because there is no policy loss.
    """

    actor: OffPolicyActor

    def resolve_config(self, config: DQNConfig) -> DQNConfig:
        """Set ε and τ where they are left open, and refuse what critics do not go with."""
        critics = check_policy(self.actor, "greedy", "DQN").config
        if critics.distribution != "none" and config.loss != "huber":
            raise ConfigError(
                f"loss='{config.loss}' has no effect on critics with a {critics.distribution} "
                "distribution, which have a loss of their own; leave it out"
            )
        if config.tau is None:
            config = replace(config, tau=0.01 if config.target_update_every == 1 else 1.0)
        if not critics.noisy:
            return replace(config, epsilon=_DEFAULT_EPSILON) if config.epsilon is None else config
        if config.epsilon not in (None, 0.0):
            raise ConfigError(
                f"epsilon={config.epsilon} contradicts actor.noisy: noisy critics explore by "
                "themselves; leave epsilon out"
            )
        return replace(config, epsilon=None)

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make the target critics."""
        actor = self.actor
        self.target_critics = copy.deepcopy(actor.critics)
        return {"target_critics": self.target_critics}

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn from windows of three steps of one environment, with one critic."""
        return off_policy_recipe(
            {"policy": "greedy", "num_critics": 1, "hidden_sizes": [120, 84]},
            storage={"size": 100_000, "n_step": 3},
        )

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn the critics."""
        return (
            ParameterGroup(
                name="critic",
                modules=("actor.critics",),
                max_grad_norm=self.config.if_set("max_grad_norm"),
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
        """Draw the weights' noise, or for each action whether to explore, and how."""
        if self.actor.config.noisy:
            return self.actor.critics.draw_noise(batch_shape, generator)
        return torch.rand((*batch_shape, 2), generator=generator, device=self.device)

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Be greedy with noisy weights, or take a random action with probability ε."""
        if self.actor.config.noisy:
            action = self.actor.critics(observation, noise=noise)[0].argmax(-1)
            return ActionOutput(action, self.actor.to_env_action(action), state)
        whether, which = noise.unbind(-1)
        values, after = self.actor.greedy_values(observation, state, episode_start)
        greedy = values.argmax(-1)
        random = (which * self.actor.num_actions).long()
        action = torch.where(whether < self.hyper["epsilon"], random, greedy)
        return ActionOutput(action, self.actor.to_env_action(action), after)

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        """Draw the noise of the three networks of (2) and (3), where they are noisy."""
        if not self.actor.config.noisy:
            return {}
        names = ("online", "target", "choice") if self.config.double else ("online", "target")
        return {name: self.actor.critics.draw_noise((), self.generator) for name in names}

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (3), or that of the distribution of returns."""
        critics = self.actor.critics
        obs, next_obs = obs_and_next_obs_inputs(critics, batch)
        outputs = of_action(critics.outputs(obs, noise=noise.get("online")), batch.action)
        target = self.target(batch, noise, next_obs)
        metrics = {"value/mean": masked_mean(critics.expected(outputs).mean(0), batch.mask)}
        if critics.returns is None:
            error, absolute = _value_errors(outputs, target, self.config.loss)
        else:
            error, absolute = critics.returns.errors(outputs, target)
            metrics |= critics.returns.metrics(target, batch.mask)
        metrics["loss/critic"] = loss = weighted_mean(error.sum(0), batch)  # Eq. (3)
        return LossOutput(loss, metrics, {"td_error": absolute.mean(0)})

    @torch.no_grad()
    def target(
        self, batch: ReplayBatch, noise: Noise, online_next_obs: NetworkInputs | None = None
    ) -> Tensor:
        """Eq. (1) or (2), or the distribution moved by it.

        Of several target critics the one with the smallest value counts.

        Args:
            batch: transitions.
            noise: of `draw_update_noise`.
            online_next_obs: the online critics' inputs at the next observations; None computes
                them.

        Returns:
            Shape `(N,)`, or `(N, K)`.
        """
        critics, online = self.target_critics, self.actor.critics
        outputs = critics.outputs(next_obs_inputs(critics, batch), noise=noise.get("target"))
        if self.config.double:  # Eq. (2): the first online critic chooses the action
            if online_next_obs is None:
                online_next_obs = next_obs_inputs(online, batch)
            values = online(online_next_obs, noise=noise.get("choice"))[0]
        else:  # Eq. (1): the target critics choose it themselves
            values = critics.expected(outputs).amin(0)
        best = of_action(outputs, values.argmax(-1))
        if critics.returns is None:
            return bootstrapped_target(batch, best.amin(0), self.hyper)
        smallest = critics.expected(best).argmin(0)
        chosen = torch.take_along_dim(best, smallest.unsqueeze(0).unsqueeze(-1), 0).squeeze(0)
        reward = scaled_reward(batch, self.hyper)
        return critics.returns.target(chosen, batch, reward, self.hyper["gamma"])


class Rainbow(DQN):
    """`DQN` with all of its improvements as defaults, which are options of actor and storage.

    Source: Hessel et al. 2018, https://arxiv.org/abs/1710.02298, Table 1.

    Deviations from the paper, whose settings are for 50 million steps of Atari: learning rate,
    minibatch size, steps between updates, target period, storage size and start of learning are
    those of `DQN`, for environments that take some 10,000 steps; rewards are not clipped.

    Args:
        actor: an `OffPolicyActor` with a greedy policy.
        config: options.
    """

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Learn by double, dueling, noisy and categorical critics from prioritized windows."""
        return off_policy_recipe(
            {
                "policy": "greedy",
                "num_critics": 1,
                "hidden_sizes": [120, 84],
                "dueling": True,
                "noisy": True,
                "distribution": "categorical",
            },
            algorithm={"double": True, "optimizer": {"eps": 1.5e-4}},
            storage={
                "size": 100_000,
                "n_step": 3,
                "prioritized": {"alpha": 0.5, "beta": "linear(0.4, 1.0)"},
            },
        )


def _value_errors(values: Tensor, target: Tensor, h: ErrorLoss) -> tuple[Tensor, Tensor]:
    """Return h of Eq. (3) and the absolute error, each `(C, N)`."""
    goal = target.expand_as(values)
    error = (
        F.huber_loss(values, goal, reduction="none")
        if h == "huber"
        else 0.5 * (values - goal).square()
    )
    return error, (values.detach() - goal).abs()
