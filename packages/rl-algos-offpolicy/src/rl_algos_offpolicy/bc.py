r"""Behavior cloning: imitate what an expert does where the expert goes.

Source: Pomerleau 1991, https://doi.org/10.1162/neco.1991.3.1.88; as a baseline: Ho, Gupta and Ermon
2016, https://arxiv.org/abs/1605.08478.

(1) $L = -\mathbb{E}_{(s, a) \sim E}[\log \pi_\theta(a \mid s)]$

(2) $L = \mathbb{E}_{(s, a) \sim E}[\lVert \mu_\theta(s) - a \rVert^2 / d]$ with μ the policy's mode
    and d the number of real actions

E is what an expert does, sampled anew before each update, or a set of demonstrations.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from gymnasium import spaces
from torch import Tensor

from rl_algos_offpolicy.config import off_policy_recipe
from rl_algos_offpolicy.critics.critics import weighted_mean
from rl_algos_offpolicy.experts import Expert, ExpertPolicy
from rl_core.actor import ActionOutput, Actor, ActorLoader, distribution_class
from rl_core.algorithm import (
    Algorithm,
    DefaultRecipe,
    EnvSpec,
    PolicyLossAddOn,
    UpdateSchedule,
)
from rl_core.batch import ReplayBatch
from rl_core.config import Config, Count, ScheduledNonNegative, ScheduledPositive
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, OptimizerConfig, ParameterGroup
from rl_core.nn.distributions import Deterministic
from rl_core.storage import Storage
from rl_core.types import Observation, State, StateDict

CloningLoss = Literal["log_prob", "mse"]
"""Eq. (1) or Eq. (2)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BCConfig(Config):
    """Options of `BC`.

    Attributes:
        expert: directory of the run whose policy is imitated; None learns from demonstrations.
        deterministic_expert: take the mode of the expert's policy instead of sampling from it.
        loss: loss of the policy: ``"log_prob"`` raises the probability of the expert's actions, for
            stochastic policies; ``"mse"`` squares the distance to them, for real actions.
        learning_rate: learning rate of the policy.
        max_grad_norm: upper bound of the gradient's norm; None disables it.
        optimizer: optimizer and its options.
        update_every: transitions that the expert collects between updates.
        num_minibatches: gradient steps per update.
        minibatch_size: samples per gradient step.

    Raises:
        ConfigError: when a value is out of range.
    """

    expert: str | None = None
    deterministic_expert: bool = True
    loss: CloningLoss = "log_prob"
    learning_rate: ScheduledNonNegative = 1e-3
    max_grad_norm: ScheduledPositive | None = None
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    update_every: Count = 1000
    num_minibatches: Count = 16
    minibatch_size: Count = 256


class BC(Algorithm[BCConfig, ReplayBatch]):
    """Behavior cloning.

    With an expert, the expert acts while collecting, and the replay storage keeps what it did.
    Without one, nothing is collected: the policy learns from the demonstrations that the storage
    was filled with, and a run's steps are gradient steps.

    Args:
        actor: whose policy learns: any feed-forward actor that takes given actions, such as
            `OffPolicyActor` or an on-policy one; its value functions are left alone.
        config: options.
        expert: instead of ``config.expert``: an actor, what has one (an agent, an algorithm), or a
            function from observations `(B, ...)`, as the environments give them, to environment
            actions `(B, ...)`.
        load_actor: reads the actor of the run ``config.expert``; `make` and the command line give
            it.
        add_ons: extra terms for the loss.

    Raises:
        ConfigError: when the loss does not fit the policy or its actions, the actor is recurrent,
            two experts are given, or an option is about an expert and there is none.
    """

    takes_add_ons: ClassVar[bool] = True

    def __init__(
        self,
        actor: Actor,
        config: BCConfig | None = None,
        *,
        expert: Expert | None = None,
        load_actor: ActorLoader | None = None,
        add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn] = (),
    ) -> None:
        super().__init__(actor, config, add_ons=add_ons)
        named = self.config.expert
        if expert is not None and named is not None:
            raise ConfigError(f"expert is given, and config.expert is '{named}'; leave one out")
        self._uses_expert_object = expert is not None
        given = named if expert is None else expert
        self._expert: ExpertPolicy | None = None
        if given is None:
            self.config.refuse(
                "is about an expert, and there is none; set algorithm.expert, or leave it out",
                *("deterministic_expert", "update_every"),
            )
        else:
            is_deterministic = self.config.deterministic_expert
            self._expert = ExpertPolicy(
                given, actor, is_deterministic=is_deterministic, load_actor=load_actor
            )

    def resolve_config(self, config: BCConfig) -> BCConfig:
        """Refuse a policy that the loss cannot teach."""
        _check_policy(self.actor, config.loss)
        return config

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Take some gradient steps after every few of the expert's, or without any."""
        config = self.config
        every = config.update_every if self.collects else config.num_minibatches
        return UpdateSchedule.of(config, update_every=every)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Teach a stochastic policy."""
        return off_policy_recipe({"policy": "stochastic", "num_critics": 1})

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn the actor without its value functions."""
        return (
            ParameterGroup(
                name="policy",
                modules=("actor", "add_ons"),
                max_grad_norm=self.config.if_set("max_grad_norm"),
                optimizer=self.config.optimizer,
            ),
        )

    def constant_modules(self) -> tuple[str, ...]:
        """Leave the value functions alone."""
        return tuple(f"actor.{name}" for name in self.actor.value_modules)

    @property
    def collects(self) -> bool:
        """Whether there is an expert to watch."""
        return self._expert is not None

    @property
    def needs_episode_start(self) -> bool:
        """Whether there is an expert, which may be recurrent."""
        return self.collects

    @property
    def uses_objects(self) -> bool:
        """Whether the expert or an add-on is a Python object."""
        return self._uses_expert_object or super().uses_objects

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what the expert needs to sample."""
        if self._expert is None:
            return super().draw_noise(batch_shape, generator)
        return self._expert.draw_noise(batch_shape, generator)

    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Let the expert act while collecting, and else the policy."""
        if self._expert is None or deterministic or noise is None:
            return super().acting_step(observation, state, noise, deterministic, episode_start)
        env_action = self._expert.act(observation, noise, episode_start)
        return ActionOutput(self.actor.from_env_action(env_action), env_action, state)

    def explorer(self) -> Callable[..., ActionOutput]:
        """Refuse to evaluate as in training where an expert acts there.

        Raises:
            ConfigError: when there is an expert.
        """
        if self._expert is not None:
            raise ConfigError(
                "the policy cannot explore as in training, where the expert acts; leave "
                "trainer.explore_in_tests, or explore, out"
            )
        return super().explorer()

    def update(self, storage: Storage[ReplayBatch]) -> dict[str, float]:
        """Learn from what the expert did.

        Raises:
            ConfigError: when there is neither an expert nor a demonstration.
        """
        if not self.collects and len(storage) == 0:
            raise ConfigError(
                "BC has nobody to imitate: set algorithm.expert to the directory of a run, or "
                "trainer.demonstrations to a data set"
            )
        return super().update(storage)

    def check_storage(self, storage: Storage[ReplayBatch]) -> None:
        """Refuse options that are about values, which it does not learn, and an expert not there.

        Raises:
            ConfigError: when the storage has such an option.
            CheckpointError: when the expert's run is not there, or its spaces or actor do not fit.
        """
        if self._expert is not None:
            self._expert.load()
        if storage.n_step > 1:
            raise ConfigError(
                "BC learns what the expert does in single steps, but the storage gives transitions "
                f"of up to {storage.n_step} steps; leave storage.n_step out"
            )
        if storage.needs_td_errors:
            raise ConfigError(
                "BC learns no values, by whose errors the storage could draw; leave "
                "storage.prioritized out"
            )

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (1) or (2)."""
        distribution, _ = self.actor.distribution(batch.observation, {})
        if self.config.loss == "log_prob":
            errors = -distribution.log_prob(batch.action)
        else:
            errors = squared_distance(distribution.mode(), batch.action)
        loss = weighted_mean(errors, batch)
        metrics = {"loss/policy": loss}
        added, more = self.add_on_terms(batch, distribution, metrics)
        return LossOutput(loss + added, {**metrics, **more})

    def more_state(self) -> StateDict:
        """Return the recurrent state of the expert."""
        return {} if self._expert is None else {"expert": dict(self._expert.state)}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
        if self._expert is not None:
            self._expert.load_state(state)


def squared_distance(mode: Tensor, action: Tensor) -> Tensor:
    """Inside of Eq. (2), shape `(N,)`.

    Args:
        mode: of the policy, shape `(N, d)`.
        action: the expert's, shape `(N, d)`.
    """
    return (mode - action).square().mean(-1)


def _check_policy(actor: Actor, loss: CloningLoss) -> None:
    if actor.is_recurrent:
        raise ConfigError("BC does not teach recurrent actors; choose a feed-forward one")
    if type(actor).from_env_action is Actor.from_env_action:
        raise ConfigError(
            f"BC needs an actor that takes given actions, but {type(actor).__name__} has no "
            "from_env_action"
        )
    is_real = isinstance(actor.action_space, spaces.Box)
    if loss == "log_prob" and distribution_class(actor) is Deterministic:
        raise ConfigError(
            "loss 'log_prob' needs a stochastic policy, and this one is deterministic; "
            + ("set loss to 'mse', or " if is_real else "")
            + "set actor.policy to 'stochastic'"
        )
    if loss == "mse" and not is_real:
        raise ConfigError(
            f"loss 'mse' needs real actions, but those of {actor.action_space} have no distances; "
            "set loss to 'log_prob'"
        )
