"""The actor of on-policy algorithms: a policy and a state-value function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gymnasium
import torch
from torch import Tensor, nn

from rl_algos_onpolicy.actor.config import OnPolicyActorConfig, check_options
from rl_algos_onpolicy.actor.hybrid import HybridHead
from rl_core.actor import ActionEvaluation, Actor
from rl_core.config import check_argument
from rl_core.errors import ConfigError
from rl_core.nn.distributions import ActionHead, Distribution, make_head
from rl_core.nn.init import initialize_
from rl_core.nn.layered_head import head_maker
from rl_core.nn.layers import make_encoder
from rl_core.nn.mlp import MLP
from rl_core.nn.torso import Torso, check_extractor
from rl_core.spaces import HybridSpace
from rl_core.storage import TensorSpec
from rl_core.types import Observation, State


@dataclass(frozen=True, slots=True)
class OnPolicyEvaluation(ActionEvaluation):
    """What an `OnPolicyActor` says of actions that were taken.

    Attributes:
        intrinsic_value: shape `(*batch,)`; None without a second value function.
    """

    intrinsic_value: Tensor | None = None


class OnPolicyActor(Actor):
    """A policy and a state-value function, on separate torsos or a shared one.

    Args:
        observation_space: vectors, images, categories, or a dict of them; a dict entry named
            ``action_mask`` says which actions are allowed.
        action_space: Box, Discrete, MultiDiscrete, MultiBinary, or a `HybridSpace`.
        config: the networks.
        feature_extractor: instead of the default encoder; an ``nn.Module`` with ``out_features``
            that takes observations `(N, ...)` and `(T, N, ...)`. It is shared by policy and value
            function, and may be a `NormalizingEncoder`.

    Raises:
        SpaceError: for a space that it cannot do.
        ConfigError: when an option is for real actions, vectors or images, and these are none, or
            when the feature extractor leaves it without effect or does not fit.
    """

    def __init__(
        self,
        observation_space: gymnasium.Space[object],
        action_space: gymnasium.Space[object],
        config: OnPolicyActorConfig | None = None,
        *,
        feature_extractor: nn.Module | None = None,
    ) -> None:
        super().__init__(observation_space, action_space)
        config = check_argument("config", config, OnPolicyActorConfig | None)
        self.config = config = config or OnPolicyActorConfig()
        has_extractor = feature_extractor is not None
        check_options(config, observation_space, action_space, has_extractor=has_extractor)
        self._uses_objects = has_extractor
        encoder = (
            self._new_encoder("body")
            if feature_extractor is None
            else check_extractor(feature_extractor, observation_space, (2,), (3, 2))
        )
        self.policy_torso = self._new_torso(encoder, config.hidden_sizes, "head")
        self.value_torso: Torso | None = None
        if not config.shared_policy_value_network:
            learned = any(True for _ in encoder.parameters())
            if config.share_body and not learned:
                raise ConfigError(
                    "actor.share_body has no effect where the encoder has nothing to learn and is "
                    "shared in any case; leave it out, or give a body that learns"
                )
            own = learned and feature_extractor is None and not config.share_body
            sizes = config.value_hidden_sizes
            body = "body" if config.value_body is None else "value_body"
            self.value_torso = self._new_torso(
                self._new_encoder(body) if own or body == "value_body" else encoder,
                config.hidden_sizes if sizes is None else sizes,
                "head" if config.value_head is None else "value_head",
            )
        is_hybrid = isinstance(action_space, HybridSpace)
        new_head: Callable[..., ActionHead] = HybridHead if is_hybrid else make_head
        self.action_head = new_head(
            action_space,
            self.policy_torso.out_features,
            squash=config.squash_actions,
            state_dependent_std=config.state_dependent_std,
            initial_log_std=config.initial_log_std,
            gain=None if config.initial_weights == "uniform" else 0.01,
        )
        value_torso = self.value_torso or self.policy_torso
        self.value_head = self._new_value_head(value_torso)
        self.intrinsic_value_head: nn.Module | None = None
        if config.intrinsic_value:
            self.intrinsic_value_head = self._new_value_head(value_torso)

    @property
    def state_sizes(self) -> Mapping[str, int]:
        """Sizes of the recurrent states of policy and value function."""
        if self.policy_torso.core is None:
            return {}
        sizes = {"policy": self.policy_torso.state_size}
        if self.value_torso is not None:
            sizes["value"] = self.value_torso.state_size
        return sizes

    @property
    def uses_objects(self) -> bool:
        """Whether the feature extractor is the user's own."""
        return self._uses_objects

    @property
    def action_spec(self) -> TensorSpec:
        """What the action head says."""
        return TensorSpec(self.action_head.action_shape, self.action_head.action_dtype)

    @property
    def normalizes_observations(self) -> bool:
        """Whether an encoder, the user's too, keeps running statistics."""
        value_torso = self.value_torso
        return self.policy_torso.normalizes or (value_torso is not None and value_torso.normalizes)

    @property
    def policy_modules(self) -> tuple[str, ...]:
        """The policy's own submodules."""
        if self.value_torso is None:
            return ("action_head",)
        return ("policy_torso", "action_head")

    @property
    def value_modules(self) -> tuple[str, ...]:
        """The value function's own submodules."""
        heads: tuple[str, ...] = ("value_head",)
        if self.intrinsic_value_head is not None:
            heads = (*heads, "intrinsic_value_head")
        return heads if self.value_torso is None else ("value_torso", *heads)

    def distribution(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Distribution, State]:
        """Return the policy at the observations; see `Actor.distribution`."""
        if self.is_recurrent:  # while acting, the value function's core must see every step too
            features, _, states = self._features(observation, state, episode_start)
        else:
            features, states = self.policy_torso(observation, None, None)[0], {}
        return self.action_head(features, self.action_mask(observation)), states

    def value(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return state values `(*batch,)`; see `Actor.value`."""
        return self._value(self.value_head, observation, state, episode_start)

    def intrinsic_value(
        self, observation: Observation, state: State, episode_start: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Return intrinsic state values `(*batch,)`; like `value`.

        Raises:
            ConfigError: without ``intrinsic_value`` in the config.
        """
        if self.intrinsic_value_head is None:
            raise ConfigError("the actor has no second value function; set actor.intrinsic_value")
        return self._value(self.intrinsic_value_head, observation, state, episode_start)

    def _value(
        self,
        head: nn.Module,
        observation: Observation,
        state: State,
        episode_start: Tensor | None,
    ) -> tuple[Tensor, State]:
        name = "policy" if self.value_torso is None else "value"
        torso = self.value_torso or self.policy_torso
        features, after = torso(observation, state.get(name), episode_start)
        value: Tensor = head(features).squeeze(-1)
        return value, {} if after is None else {name: after}

    def evaluate_actions(
        self,
        observation: Observation,
        action: Tensor,
        state: State,
        episode_start: Tensor | None = None,
    ) -> OnPolicyEvaluation:
        """Evaluate policy and value functions, computing what they share once."""
        features, value_features, states = self._features(observation, state, episode_start)
        distribution = self.action_head(features, self.action_mask(observation))
        second = self.intrinsic_value_head
        return OnPolicyEvaluation(
            distribution,
            distribution.log_prob(action),
            self.value_head(value_features).squeeze(-1),
            states,
            None if second is None else second(value_features).squeeze(-1),
        )

    def _features(
        self, observation: Observation, state: State, episode_start: Tensor | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return features of policy and value function, and the recurrent states after each step.

        An encoder that both share runs once.
        """
        policy, value = self.policy_torso, self.value_torso
        encoded = policy.encoder(observation)
        features, after = policy(observation, state.get("policy"), episode_start, encoded)
        states = {} if after is None else {"policy": after}
        if value is None:
            return features, features, states
        shared = encoded if value.encoder is policy.encoder else None
        value_features, after = value(observation, state.get("value"), episode_start, shared)
        if after is not None:
            states["value"] = after
        return features, value_features, states

    def to_env_action(self, action: Tensor) -> Tensor:
        """Clip or scale to the action space."""
        return self.action_head.to_env_action(action)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        """Scale from the bounds, where actions are scaled to them, and flatten."""
        return self.action_head.from_env_action(env_action)

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what sampling from the policy needs."""
        return self.action_head.draw_noise(batch_shape, generator)

    def update_normalization(self, observation: Observation, mask: Tensor | None = None) -> None:
        """Refresh the running statistics; torsos that share an encoder refresh it once."""
        self.policy_torso.update_normalization(observation, mask)
        value_torso = self.value_torso
        if value_torso is not None and value_torso.encoder is not self.policy_torso.encoder:
            value_torso.update_normalization(observation, mask)

    def _new_encoder(self, option: str) -> nn.Module:
        encoder = make_encoder(
            self.observation_space,
            getattr(self.config, option),
            normalize=self.config.normalize_observations,
            image_features=self.config.image_features,
            path=f"actor.{option}",
        )
        return initialize_(encoder, self.config.initial_weights)

    def _new_value_head(self, torso: Torso) -> MLP:
        return initialize_(MLP(torso.out_features, (), 1), self.config.initial_weights)

    def _new_torso(self, encoder: nn.Module, hidden_sizes: tuple[int, ...], option: str) -> Torso:
        torso = Torso(
            encoder,
            hidden_sizes,
            self.config.activation,
            core=self.config.core,
            make_layers=head_maker(getattr(self.config, option), f"actor.{option}"),
        )
        initialize_(torso.layers, self.config.initial_weights)
        return torso
