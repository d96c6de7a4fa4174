"""The smallest actor and the smallest algorithm that do everything: to test with, and to copy.

`ToyActor` is linear, so that values can be worked out by hand; `ToyActorCritic` is a one-step
actor-critic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import gymnasium
import torch
from torch import Tensor, nn

from rl_core.actor import ActionEvaluation, Actor
from rl_core.algorithm import Algorithm, DefaultRecipe, EnvSpec, evaluate_rollout
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import ComponentSpec, Config, Count, ScheduledFraction, ScheduledNonNegative
from rl_core.gradients import LossOutput, Noise, masked_mean
from rl_core.nn.distributions import Distribution, make_head
from rl_core.nn.torso import ObservationEncoder
from rl_core.returns import td_advantages
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State


class ToyActor(Actor):
    """A linear policy and a linear value function of the observation's features.

    Args:
        observation_space: what `ObservationEncoder` takes.
        action_space: what `make_head` takes.
        remembers: read the sum of the features since the episode's start instead of the current
            ones, which makes the actor recurrent.
        normalize: by running statistics.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        *,
        remembers: bool = False,
        normalize: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.remembers = remembers
        self.encoder = ObservationEncoder(observation_space, normalize=normalize, image_features=8)
        self.policy = make_head(action_space, self.encoder.out_features)
        self.value_layer = nn.Linear(self.encoder.out_features, 1)

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """One sum per feature, for an actor that remembers."""
        return {"sum": self.encoder.out_features} if self.remembers else {}

    @property
    def action_spec(self) -> TensorSpec:
        """What the head says."""
        return TensorSpec(self.policy.action_shape, self.policy.action_dtype)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        """Return the policy at the observations; see `Actor.distribution`."""
        features, after = self._features(observation, state, episode_start)
        return self.policy(features, self.action_mask(observation)), after

    def value(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return state values `(*batch,)`; see `Actor.value`."""
        features, after = self._features(observation, state, episode_start)
        return self.value_layer(features).squeeze(-1), after

    def evaluate_actions(
        self,
        observation: Observation,
        action: Tensor,
        state: State,
        episode_start: Tensor | None = None,
    ) -> ActionEvaluation:
        """Evaluate actions and values; see `Actor.evaluate_actions`."""
        evaluation = super().evaluate_actions(observation, action, state, episode_start)
        value, _ = self.value(observation, state, episode_start)
        return replace(evaluation, value=value)

    def to_env_action(self, action: Tensor) -> Tensor:
        """Ask the head."""
        return self.policy.to_env_action(action)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what the head's distribution samples from."""
        return self.policy.draw_noise(batch_shape, generator)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Refresh the encoder's statistics, where it keeps any."""
        self.encoder.update_normalization(observation, mask)

    @property
    def normalizes_observations(self) -> bool:
        """Whether the encoder keeps statistics."""
        return self.encoder.normalizes

    @property
    def policy_modules(self) -> tuple[str, ...]:
        """The head."""
        return ("policy",)

    @property
    def value_modules(self) -> tuple[str, ...]:
        """The layer of the values."""
        return ("value_layer",)

    def _features(
        self, observation: Observation, state: State, episode_start: Tensor | None
    ) -> tuple[Tensor, State]:
        features: Tensor = self.encoder(observation)
        if not self.remembers:
            return features, {}
        assert episode_start is not None
        keep = (~episode_start).to(features.dtype).unsqueeze(-1)
        if keep.dim() == 2:  # (N, 1): one step
            total = state["sum"] * keep + features
            return total, {"sum": total}
        totals = [state["sum"]]
        for kept, added in zip(keep, features, strict=True):
            totals.append(totals[-1] * kept + added)
        sums = torch.stack(totals[1:])
        return sums, {"sum": sums}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyConfig(Config):
    """Options of `ToyActorCritic`.

    Attributes:
        learning_rate: of Adam.
        gamma: discount per step, in [0, 1].
        num_epochs: passes over each rollout.
        num_minibatches: minibatches per pass.

    Raises:
        ConfigError: when a value is out of range.
    """

    learning_rate: ScheduledNonNegative = 0.05
    gamma: ScheduledFraction = 0.9
    num_epochs: Count = 1
    num_minibatches: Count = 2


class ToyActorCritic(Algorithm[ToyConfig, RolloutBatch]):
    """Raise the probability of actions that turned out better than the value function thought.

    Args:
        actor: a policy and a state-value function, such as `ToyActor`.
        config: options.
        add_ons: extra terms for the policy loss.
    """

    takes_add_ons: ClassVar[bool] = True

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take short rollouts of two environments."""
        return DefaultRecipe(
            actor=ComponentSpec("actor", "on-policy"),
            storage=ComponentSpec("storage", "rollout", {"num_steps": 8}),
            env={"num_envs": 2},
        )

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Take one-step errors as advantages."""
        values = evaluate_rollout(self.actor, rollout)
        advantage = td_advantages(
            rollout.reward, values.value, values.next_value, rollout.terminated, self.hyper["gamma"]
        )
        columns = {
            "log_prob": values.log_prob,
            "value": values.value,
            "advantage": advantage,
            "value_target": advantage + values.value,
        }
        return columns, {"value/advantage": masked_mean(advantage, rollout.valid)}

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Add policy gradient and squared error."""
        now = self.actor.evaluate_actions(
            batch.observation, batch.action, batch.state, batch.episode_start
        )
        assert now.value is not None
        policy = -masked_mean(now.log_prob * batch.advantage, batch.mask)
        value = 0.5 * masked_mean((now.value - batch.value_target).square(), batch.mask)
        metrics = {"loss/policy": policy, "loss/value": value}
        added, more = self.add_on_terms(batch, now.distribution, metrics)
        return LossOutput(policy + value + added, {**metrics, **more})
