r"""Random network distillation: what is hard to predict is new, and worth seeing.

Source: Burda et al. 2018, https://arxiv.org/abs/1810.12894.

With a fixed random network $f$, a trained one $\hat f$, and observations normalized and clipped:

(1) $i(s) = \tfrac1n \|\hat f_\psi(s) - f(s)\|^2$, how new an observation is

(2) $L^{\psi} = \mathbb{E}_t[m_t\, i(s_t)]$ over the samples that are kept, each with the
    probability ``predictor_proportion``

(3) $c_t = \gamma_I c_{t-1} + i_t$, over all steps and rollouts, not reset by episodes;
    rewards are $i_t / \sigma(c)$

The reward of a step is Eq. (1) of what follows it, within its episode.

Deviations from the paper:

- The reward of a step that ends its episode, truncated or terminated, is Eq. (1) of the step's own
  observation. What comes next is not its doing, and the true final observation, which rollouts keep
  of truncated steps only, is never among the samples: it would stay as new as it was.
- Which samples are kept is drawn once per rollout.
- The spread of c follows the last rollouts (``spread_decay``). A small predictor's first errors are
  a thousand times its later ones; a spread that remembers them makes the later rewards too small
  for a value function to learn.
- The default target has random biases. Without any, a ReLU network only scales along a ray from
  the mean observation, so that a predictor that fits what is near also fits what is far and was
  never seen. This matters where observations have few dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, final

import gymnasium
import torch
from annotated_types import Interval
from torch import Tensor, nn

from rl_algos_onpolicy.rnd.networks import FeatureNet, NormalizedObservation
from rl_core.actor import Actor
from rl_core.algorithm import PolicyLossAddOn, PreparedRollout
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.config import (
    Config,
    Count,
    Fraction,
    Needs,
    NonNegative,
    NonNegativeInt,
    Widths,
    checked_arguments,
)
from rl_core.errors import CheckpointError, ConfigError
from rl_core.gradients import masked_mean
from rl_core.nn.distributions import Distribution
from rl_core.nn.normalization import RunningNorm
from rl_core.returns import discounted_returns
from rl_core.stateful import StateReader
from rl_core.types import Observation, StateDict, map_observation

INTRINSIC_REWARD = "rnd_reward"
"""Eq. (3), among the extras of prepared rollouts."""

KEPT = "rnd_kept"
"""Which samples the predictor learns from, among the extras of batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RNDConfig(Config):
    """Options of random network distillation.

    Attributes:
        hidden_sizes: widths of the target's layers; the predictor has one more of the last width.
        num_features: number of outputs of target and predictor (n).
        gamma_intrinsic: discount factor of intrinsic rewards, per step.
        spread_decay: factor on the weight of earlier rollouts in the spread that intrinsic rewards
            are divided by (σ); 1 weighs all alike, as in the paper.
        predictor_proportion: share of the samples that the predictor learns from.
        pre_normalization_steps: environment transitions with random actions before training, for
            the statistics of observations; they are not part of the run's steps.
        frame_stack: frames in an image's channels, of which only the newest, the last, is used;
            frames along an axis of their own are found without it.

    Raises:
        ConfigError: when a value is out of range.
    """

    hidden_sizes: Widths = (64, 64)
    num_features: Count = 64
    gamma_intrinsic: Fraction = 0.99
    spread_decay: Annotated[float, Interval(gt=0, le=1)] = 0.5
    predictor_proportion: Annotated[float, Interval(gt=0, le=1)] = 1.0
    pre_normalization_steps: NonNegativeInt = 1280
    frame_stack: Count = 1


class Novelty(nn.Module):
    """How new observations are, and the intrinsic rewards made of it.

    Args:
        observation_space: of one environment.
        config: options.
        target: instead of the default network; from a list of normalized parts, each with the same
            batch axes, of which there may be several, to features `(*batch, F)`.
        predictor: likewise; its features must have the target's width.
        device: where all of it shall be, networks that are given among it; None takes the CPU.

    Raises:
        ConfigError: when just one network is given, they do not fit each other, or the config sizes
            networks although they are given.
    """

    @checked_arguments()
    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        config: RNDConfig,
        *,
        target: Annotated[nn.Module | None, Needs("predictor")] = None,
        predictor: Annotated[nn.Module | None, Needs("target")] = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        if target is not None:
            config.refuse(
                "has no effect on networks that are given; leave it out",
                *("hidden_sizes", "num_features"),
                section="rnd.",
            )
            if target is predictor:
                raise ConfigError(
                    "target and predictor are one module, which would have nothing to learn; give "
                    "two"
                )
        self.config = config
        self.normalize = NormalizedObservation(observation_space, config.frame_stack)
        sizes, shapes = config.hidden_sizes, self.normalize.shapes
        if target is None:
            target = FeatureNet(shapes, sizes, config.num_features, bias_std=1.0)
        if predictor is None:
            predictor = FeatureNet(shapes, (*sizes, *sizes[-1:]), config.num_features)
        self.target, self.predictor = target, predictor
        self.target.requires_grad_(False)
        self.spread = RunningNorm((), decay=config.spread_decay)
        self.filtered: Tensor | None = None
        self.to(device or torch.device("cpu"))
        self._check_features()

    def forward(self, observation: Observation) -> Tensor:
        """Eq. (1), shape `(*batch,)`."""
        parts = self.normalize(observation)
        novelty: Tensor = (self.predictor(parts) - self.target(parts)).square().mean(-1)
        return novelty

    def loss(self, batch: RolloutBatch) -> Tensor:
        """Eq. (2), 0-dim."""
        return masked_mean(self(batch.observation), batch.mask * batch.extras[KEPT])

    @torch.no_grad()
    def _check_features(self) -> None:
        device = self.spread.mean.device
        parts = [torch.zeros(2, 3, *shape, device=device) for shape in self.normalize.shapes]
        wide, learned = (tuple(net(parts).shape) for net in (self.target, self.predictor))
        if wide != learned or len(wide) != 3 or wide[:2] != (2, 3):
            raise ConfigError(
                f"for a batch (2, 3) the target returns features {wide}, the predictor {learned}; "
                "expected (2, 3, F) from both, with the same number of features F"
            )

    @torch.no_grad()
    def rewards(self, rollout: Rollout) -> Tensor:
        """Take a fresh rollout into the statistics, and return its rewards `(T, B)`: Eq. (3)."""
        valid = rollout.valid
        self.normalize.update(rollout.observation, valid)
        here = self(rollout.observation)
        last = self(map_observation(lambda x: x.unsqueeze(0), rollout.next_observation))
        ended = rollout.terminated | rollout.truncated
        novelty = torch.where(ended, here, torch.cat([here[1:], last])) * valid
        sums = self.filter(novelty, valid)
        self.spread.update(sums, valid)
        return novelty * self.spread.scale

    def filter(self, novelty: Tensor, valid: Tensor) -> Tensor:
        """Return c of Eq. (3), `(T, B)`, going on from the last rollout's.

        Args:
            novelty: i of Eq. (3), `(T, B)`.
            valid: `(T, B)`; rows that are not steps leave c as it is.
        """
        before = torch.zeros_like(novelty[0]) if self.filtered is None else self.filtered
        if before.shape != novelty.shape[1:]:
            raise ConfigError(
                f"the rollout is of {novelty.shape[1]} environments, but the sums of intrinsic "
                f"rewards are of {len(before)}"
            )
        # The same recursion as that of returns, with time reversed.
        never = torch.zeros_like(novelty, dtype=torch.bool)
        start = before.expand_as(novelty)
        gamma = torch.where(valid, self.config.gamma_intrinsic, 1.0)
        sums = discounted_returns(novelty.flip(0), start, never, never, gamma.flip(0)).flip(0)
        self.filtered = sums[-1].clone()
        return sums

    def draw_kept(self, rollout: Rollout, generator: torch.Generator) -> Tensor:
        """Draw which samples are kept, `(T, B)`."""
        drawn = torch.rand(rollout.reward.shape, generator=generator, device=rollout.reward.device)
        return (drawn < self.config.predictor_proportion).to(torch.float32)

    def running_state(self) -> StateDict:
        """Return what is neither parameter nor buffer: the filter's last row."""
        return {} if self.filtered is None else {"filtered": self.filtered}

    def load_running_state(self, state: StateDict) -> None:
        """Take over what `running_state` returned."""
        self.filtered = None
        if state:
            device = self.spread.mean.device
            filtered = StateReader(state, "rnd").tensor("filtered").to(device, copy=True)
            if filtered.dim() != 1 or not filtered.is_floating_point():
                raise CheckpointError("rnd: 'filtered' is not a row of one number per environment")
            self.filtered = filtered


@final
class RND(PolicyLossAddOn):
    """Add intrinsic rewards to those of the environment, for any on-policy algorithm.

    The sum is one stream of rewards with the algorithm's own discount and ends of episodes, where
    `RNDPPO` values both apart.

    Args:
        reward_coef: factor on intrinsic rewards, at least 0.
        rnd: options.
        target: instead of the default network, see `Novelty`.
        predictor: instead of the default network.

    Raises:
        ConfigError: when a value is out of range.
    """

    batch_types: ClassVar[tuple[type, ...]] = (RolloutBatch,)

    @checked_arguments()
    def __init__(
        self,
        reward_coef: NonNegative = 1.0,
        rnd: RNDConfig = RNDConfig(),  # frozen, and so safe to share
        *,
        target: nn.Module | None = None,
        predictor: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.reward_coef = reward_coef
        self.rnd = rnd
        self._networks = target, predictor

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Make the networks."""
        target, predictor = self._networks
        self.novelty = Novelty(
            actor.observation_space, self.rnd, target=target, predictor=predictor, device=device
        )

    def prepare(self, rollout: Rollout, generator: torch.Generator) -> PreparedRollout:
        """Add Eq. (3) to the rewards, and keep it among the extras."""
        intrinsic = self.novelty.rewards(rollout)
        changed = replace(
            rollout,
            reward=rollout.reward + self.reward_coef * intrinsic,
            extras={**rollout.extras, INTRINSIC_REWARD: intrinsic},
        )
        columns = {KEPT: self.novelty.draw_kept(rollout, generator)}
        mean = masked_mean(intrinsic, rollout.valid)
        return PreparedRollout(changed, columns, {"rnd/reward": mean})

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Eq. (2)."""
        assert isinstance(batch, RolloutBatch)
        term = self.novelty.loss(batch)
        return term, {"loss/predictor": term}

    @property
    def warm_up_steps(self) -> int:
        """Random steps for the statistics of observations."""
        return self.rnd.pre_normalization_steps

    def observe(self, observation: Observation) -> None:
        """Take observations into the statistics."""
        self.novelty.normalize.update(observation)

    @property
    def uses_objects(self) -> bool:
        """Whether the networks are the user's own."""
        return self._networks != (None, None)

    def more_state(self) -> StateDict:
        """Return the filter's last row."""
        return self.novelty.running_state()

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
        self.novelty.load_running_state(state)
