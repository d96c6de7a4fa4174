r"""Actors that are told what task they are in, by a latent that an encoder infers.

Source: Rakelly et al. 2019, https://arxiv.org/abs/1903.08254, section 4.

For a context $c_1 \dots c_N$ of transitions $(s, a, r)$, or $(s, a, r, s')$:

(1) $q(z|c) \propto \prod_n N(\mu(c_n), \sigma^2(c_n))$, which is the Gaussian with
    $\sigma^{-2} = \sum_n \sigma_n^{-2}$ and $\mu = \sigma^2 \sum_n \sigma_n^{-2} \mu_n$

(2) $KL(q(z|c) \| N(0, I)) = \tfrac12 \sum_i (\mu_i^2 + \sigma_i^2 - 1 - \log \sigma_i^2)$

Without the information bottleneck, $z$ is the mean of $\mu(c_n)$.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_core import plugins
from rl_core.actor import ActionOutput, Actor
from rl_core.config import Config, Count, Widths, construct, decode, options_of
from rl_core.errors import ConfigError, SpaceError
from rl_core.nn.distributions import Distribution
from rl_core.nn.mlp import MLP
from rl_core.storage import TensorSpec
from rl_core.types import Json, Observation, State
from rl_meta.inner_algorithm import copy_actor

_SMALLEST_VARIANCE = 1e-7


def product_of_gaussians(mean: Tensor, variance: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. (1): the normalized product of independent Gaussians.

    Args:
        mean: shape `(M, C, L)`.
        variance: the same shape, above 0.
        mask: shape `(M, C)`, which factors count; at least one of each row does.

    Returns:
        Mean and standard deviation, each `(M, L)`.
    """
    precision = mask.unsqueeze(-1) / variance
    total = precision.sum(1)
    return (precision * mean).sum(1) / total, total.rsqrt()


def kl_to_prior(mean: Tensor, std: Tensor) -> Tensor:
    """Eq. (2), shape `(M,)`, for means and standard deviations `(M, L)`."""
    return 0.5 * (mean.square() + std.square() - 1.0 - 2.0 * std.log()).sum(-1)


class ContextEncoder(nn.Module):
    """Infers a latent from a context, whatever the order of its transitions.

    Args:
        in_features: numbers that a transition has.
        latent_dim: size of the latent, L.
        hidden_sizes: width of each hidden layer.
        use_information_bottleneck: infer a Gaussian by Eq. (1), not a number.
    """

    def __init__(
        self,
        in_features: int,
        latent_dim: int,
        hidden_sizes: tuple[int, ...],
        use_information_bottleneck: bool,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.is_stochastic = use_information_bottleneck
        width = 2 * latent_dim if use_information_bottleneck else latent_dim
        self.network = MLP(in_features, hidden_sizes, width, activation="relu")

    def forward(self, context: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of the latent, each `(M, L)`.

        Args:
            context: shape `(M, C, F)`.
            mask: shape `(M, C)`, float, 1 for the transitions that count.
        """
        inferred = self.network(context)
        if not self.is_stochastic:
            weight = (mask / mask.sum(1, keepdim=True)).unsqueeze(-1)
            mean = (weight * inferred).sum(1)
            return mean, torch.zeros_like(mean)
        mean, spread = inferred.chunk(2, -1)
        return product_of_gaussians(mean, F.softplus(spread).clamp(min=_SMALLEST_VARIANCE), mask)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextConditionedActorConfig(Config):
    """The networks of a `ContextConditionedActor`.

    Attributes:
        inner_actor: registered name of the actor that the latent is given to.
        inner_options: its options.
        latent_dim: size of the latent.
        encoder_hidden_sizes: widths of the encoder's layers.
        use_information_bottleneck: infer a distribution of latents, not just one.
        use_next_observation: let the context tell what each transition led to, which tasks need
            that differ in their dynamics.

    Raises:
        ConfigError: when a value is out of range.
    """

    inner_actor: str = "off-policy"
    inner_options: Mapping[str, Json] = field(default_factory=dict)
    latent_dim: Count = 5
    encoder_hidden_sizes: Widths = (200, 200, 200)
    use_information_bottleneck: bool = True
    use_next_observation: bool = False


class ContextConditionedActor(Actor):
    """An actor whose networks get the observation and a latent, which tells the task.

    Args:
        observation_space: a Box of vectors.
        action_space: of one environment; the inner actor says which it takes.
        config: options.

    Attributes:
        inner: an actor of the observation and the latent behind it.
        encoder: infers the latent.
        belief: shape `(L,)`, the latent that it acts with when it is told no other; at first the
            mean of the prior.

    Raises:
        SpaceError: for another observation space.
        ConfigError: when the inner actor is recurrent or has running statistics.
    """

    belief: Tensor

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        config: ContextConditionedActorConfig | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.config = config = config or ContextConditionedActorConfig()
        if not isinstance(observation_space, spaces.Box) or len(observation_space.shape) != 1:
            raise SpaceError(
                f"a latent is appended to observations that are vectors, got {observation_space}; "
                "flatten them (gymnasium.wrappers.FlattenObservation)"
            )
        unbounded = np.full(config.latent_dim, np.inf)
        low = np.concatenate([observation_space.low, -unbounded]).astype(np.float32)
        high = np.concatenate([observation_space.high, unbounded]).astype(np.float32)
        cls = plugins.load("actor", config.inner_actor)
        options = decode(options_of(cls), config.inner_options, "actor.inner_options")
        conditioned = {"observation_space": spaces.Box(low, high), "action_space": action_space}
        self.inner = cast("Actor", construct(cls, conditioned, options))
        if self.inner.is_recurrent or self.inner.normalizes_observations:
            raise ConfigError(
                "actor.inner_options: an actor with a latent is feed-forward and keeps no running "
                "statistics; leave recurrent_net and normalize_observations out"
            )
        size = observation_space.shape[0]
        self.encoder = ContextEncoder(
            size * (1 + config.use_next_observation) + self._action_size + 1,
            config.latent_dim,
            tuple(config.encoder_hidden_sizes),
            config.use_information_bottleneck,
        )
        self.register_buffer("belief", torch.zeros(config.latent_dim))

    def context(
        self, observation: Tensor, action: Tensor, reward: Tensor, next_observation: Tensor
    ) -> Tensor:
        """Return what the encoder is given of transitions, `(*batch, F)`."""
        batch = reward.shape
        if isinstance(self.action_space, spaces.Discrete):
            action = F.one_hot(action.long(), self._action_size)
        parts = [observation, action.reshape(*batch, -1), reward.unsqueeze(-1)]
        if self.config.use_next_observation:
            parts.append(next_observation)
        return torch.cat([part.float() for part in parts], -1)

    def with_latent(self, observation: Tensor, latent: Tensor) -> Tensor:
        """Append latents `(L,)` or `(*batch, L)` to observations `(*batch, D)`."""
        shape = (*observation.shape[:-1], latent.shape[-1])
        return torch.cat([observation.float(), latent.expand(shape)], -1)

    def act(self, observation: Tensor, latent: Tensor, noise: Tensor | None) -> ActionOutput:
        """Choose actions with latents; see `Actor.get_action`. Without noise they are the modes."""
        return self.inner.get_action(
            self.with_latent(observation, latent), {}, noise, noise is None
        )

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        """Return the distribution over actions with the belief as the latent."""
        assert isinstance(observation, Tensor)
        return self.inner.distribution(self.with_latent(observation, self.belief), state)

    def q_values(self, observation: Observation, action: Tensor | None, state: State) -> Tensor:
        """Return action values with the belief as the latent."""
        assert isinstance(observation, Tensor)
        return self.inner.q_values(self.with_latent(observation, self.belief), action, state)

    @property
    def action_spec(self) -> TensorSpec:
        """Shape and dtype of one actor-space action."""
        return self.inner.action_spec

    def to_env_action(self, action: Tensor) -> Tensor:
        """Map actor-space actions to what the environment takes."""
        return self.inner.to_env_action(action)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Undo `to_env_action`."""
        return self.inner.from_env_action(env_action)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what sampling from the policy needs."""
        return self.inner.draw_noise(batch_shape, generator)

    def with_belief(self, belief: Tensor) -> "ContextConditionedActor":
        """Return a copy that shares no memory and acts with another latent `(L,)`."""
        actor = copy_actor(self)
        actor.belief.copy_(belief)
        return actor

    @property
    def _action_size(self) -> int:
        if isinstance(self.action_space, spaces.Discrete):
            return int(self.action_space.n)
        return math.prod(self.inner.action_spec.shape)
