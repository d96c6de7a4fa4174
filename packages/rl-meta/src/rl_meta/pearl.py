r"""PEARL: a latent, inferred from what happened, tells policy and critics what task they are in.

Source: Rakelly et al. 2019, https://arxiv.org/abs/1903.08254, Algorithms 1 and 2.

For a task with context $c$ and replayed transitions, with Eq. (1) and (2) of `rl_meta.context`:

(3) $z \sim q(z|c)$

(4) $L^Q = L^{critic}(s, a, r, s', z)$ and $L^q = L^Q + \beta\,KL(q(z|c) \| N(0, I))$, by which the
    encoder learns through $z$

(5) $L^\pi = L^{policy}(s, \bar z)$, which does not reach the encoder

The losses are those of the inner algorithm, whose networks get the observation and $z$.

Deviations from the paper: the inner SAC has target critics in the place of a value network and
learns its temperature; (5) takes $z$ from the encoder as it is after (4), not before; the
divergence is averaged over tasks, not summed, so that β means the same for every number of tasks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_core.actor import ActionOutput
from rl_core.algorithm import (
    Algorithm,
    DefaultRecipe,
    EnvSpec,
    PolicyLossAddOn,
    run_update,
)
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.config import (
    ComponentSpec,
    Config,
    Count,
    NonNegativeInt,
    Schedule,
    ScheduledNonNegative,
    check_argument,
)
from rl_core.env import TaskVecEnv, VecEnv
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup, TargetNetwork
from rl_core.gradients.trust_region import Parameters
from rl_core.nn.distributions import DiagonalGaussian, Distribution, SquashedGaussian
from rl_core.stateful import StateReader
from rl_core.storage import Storage
from rl_core.types import Json, Observation, State, StateDict
from rl_meta.context import ContextConditionedActor, kl_to_prior
from rl_meta.evaluation import evaluate_adaptation
from rl_meta.inner_algorithm import (
    SchedulesWithInner,
    build_inner,
    inner_class,
    on_cpu,
    rows_per_task,
    with_tasks,
)
from rl_meta.rollouts import group_by_task, next_observations
from rl_meta.task_replay import CONTEXT_COLUMNS, TaskReplayStorage


@dataclass(frozen=True, kw_only=True, slots=True)
class PEARLConfig(Config):
    """Options of `PEARL`.

    Attributes:
        inner_algorithm: registered name of the off-policy algorithm that learns from replayed
            transitions; it has a ``critic_loss`` and a ``policy_loss``.
        inner_options: its options; those about when and how much it learns are refused.
        encoder_learning_rate: learning rate of the encoder.
        kl_coef: weight of the divergence of latents from the prior (β); has no effect without the
            information bottleneck.
        policy_mean_coef: penalty of the squared means of a Gaussian policy, before squashing.
        policy_std_coef: penalty of the squared logarithms of its standard deviations.
        policy_pre_activation_coef: penalty of the squared norms of actions before squashing, in
            expectation.
        num_train_tasks: tasks that are learned from, drawn once; None draws 100, or takes all where
            there are fewer.
        num_sampled_tasks: visits to tasks in an iteration, all at once and as evenly as can be; it
            divides the number of environments.
        num_prior_rollouts: rollouts of each visit with latents from the prior. They begin the
            task's context anew.
        num_posterior_rollouts: rollouts with latents from the posterior, inferred anew for each;
            they are part of the context too.
        num_extra_rollouts: rollouts with latents from the posterior that are not.
        num_minibatches: gradient steps per iteration.
        minibatch_size: replayed transitions of each task in a gradient step.
        num_exploration_episodes: episodes that evaluations adapt to, one after the other.
        num_judged_episodes: episodes that each policy of a task is judged by in evaluations.

    Raises:
        ConfigError: when a value is out of range, or more tasks are visited than there are.
    """

    inner_algorithm: str = "sac"
    inner_options: Mapping[str, Json] = field(default_factory=dict)
    encoder_learning_rate: ScheduledNonNegative = 3e-4
    kl_coef: ScheduledNonNegative = 0.1
    policy_mean_coef: ScheduledNonNegative = 0.0
    policy_std_coef: ScheduledNonNegative = 0.0
    policy_pre_activation_coef: ScheduledNonNegative = 0.0
    num_train_tasks: Count | None = None
    num_sampled_tasks: Count = 20
    num_prior_rollouts: Count = 1
    num_posterior_rollouts: NonNegativeInt = 0
    num_extra_rollouts: NonNegativeInt = 1
    num_minibatches: Count = 200
    minibatch_size: Count = 64
    num_exploration_episodes: Count = 2
    num_judged_episodes: Count = 1

    def __post_init__(self) -> None:
        Config.__post_init__(self)
        if self.num_train_tasks is not None and self.num_sampled_tasks > self.num_train_tasks:
            raise ConfigError(
                f"num_sampled_tasks={self.num_sampled_tasks} is more than "
                f"num_train_tasks={self.num_train_tasks}; change one of them"
            )


class _SplitLoss(Protocol):
    """What an inner algorithm needs: losses that can be computed one without the other."""

    def critic_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput: ...

    def policy_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput: ...


class PEARL(Algorithm[PEARLConfig, ReplayBatch]):
    """PEARL over an off-policy algorithm.

    An update of the training loop is one rollout of `TaskReplayStorage`, in which row b has task
    ``b // (B / num_sampled_tasks)``. A run begins with one rollout of each train task. Then each
    iteration visits random tasks, for as many rollouts as the config says, and after the last of
    them takes its gradient steps.

    Args:
        actor: a `ContextConditionedActor`.
        config: options.

    Attributes:
        inner: the inner algorithm, of which only the losses are used.

    Raises:
        ConfigError: for another actor, or an inner algorithm whose loss cannot be split.
    """

    actor: ContextConditionedActor

    def resolve_config(self, config: PEARLConfig) -> PEARLConfig:
        """Refuse an actor that knows no contexts."""
        if not isinstance(self.actor, ContextConditionedActor):
            raise ConfigError(
                f"PEARL needs a ContextConditionedActor, got {type(self.actor).__name__}; choose "
                "the actor 'context-conditioned'"
            )
        return config

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Build the inner algorithm."""
        config, actor = self.config, self.actor
        name = config.inner_algorithm
        inner = inner_class(name)
        is_split = all(hasattr(inner, part) for part in ("critic_loss", "policy_loss"))
        if not is_split or inner.explore is not Algorithm.explore:
            raise ConfigError(
                f"inner_algorithm='{name}' must have critic_loss and policy_loss, and explore by "
                "sampling its policy; use sac or a plug-in like it"
            )
        add_ons = [_GaussianRegularizer(self)] if self._is_regularized else []
        try:
            self.inner = build_inner(name, config.inner_options, actor.inner, add_ons)
        except ConfigError as error:  # it knows no other actor than the inner one
            message = re.sub(r"\bactor\.(?=\w)", "actor.inner_options.", str(error))
            raise ConfigError(message) from error
        self.schedules = SchedulesWithInner(config, self.device, self.inner.schedules)
        self.hyper = self.schedules.current
        self._tasks: Tensor | None = None
        self._visited = torch.arange(config.num_sampled_tasks)
        self._belief = self._prior(config.num_sampled_tasks)
        self._latents = torch.zeros_like(self._belief[0])  # (B, L) from the first rollout on
        self._rows_per_task = 1
        self._num_tasks = config.num_sampled_tasks
        self._is_drawn = False
        self._num_rollouts = 0
        modules = self.inner.modules
        return {n: module for n, module in modules.items() if n not in ("actor", "add_ons")}

    def _prior(self, num_tasks: int) -> Tensor:
        """Return mean and std of latents before any context, (2, M, L); 0 without a bottleneck."""
        mean = torch.zeros(num_tasks, self.actor.config.latent_dim, device=self.device)
        return torch.stack([mean, torch.full_like(mean, self.actor.encoder.is_stochastic)])

    @property
    def _is_regularized(self) -> bool:
        return any(getattr(self.config, name) != 0.0 for name in _REGULARIZERS)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take 20 environments, one for each task that is visited, and episodes as rollouts."""
        return DefaultRecipe(
            actor=ComponentSpec("actor", "context-conditioned", {}),
            storage=ComponentSpec(
                "storage", "task-replay", {"num_steps": env.max_episode_steps or 100}
            ),
            env={"num_envs": 20},
            algorithm={},
            trainer={"scale_rewards": False, "num_test_episodes": 20},
        )

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Add the encoder to what the inner algorithm learns."""
        groups = [
            replace(group, modules=tuple(map(_of_inner, group.modules)))
            for group in self.inner.parameter_groups()
        ]
        encoder = ParameterGroup(
            name="encoder",
            modules=("actor.encoder",),
            learning_rate="encoder_learning_rate",
            optimizer=groups[0].optimizer,
        )
        return (*groups, encoder)

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Let the inner algorithm's targets follow."""
        return tuple(
            replace(target, source=_of_inner(target.source))
            for target in self.inner.target_networks()
        )

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: float | Schedule
    ) -> None:
        """Change an option while running, see `Algorithm`; the inner algorithm checks its own.

        Raises:
            ConfigError: when it may not change; a penalty in a run that began without any, too.
        """
        begins = not self._is_regularized and new_parameter_value != 0.0
        if parameter_name in _REGULARIZERS and begins:
            raise ConfigError(
                f"{parameter_name} cannot become {new_parameter_value} in a run that began without "
                "penalties, which are not computed there; begin with a number above 0"
            )
        if parameter_name in self.inner.schedules:
            self.inner.update_algorithm_parameter(parameter_name, new_parameter_value)
        super().update_algorithm_parameter(parameter_name, new_parameter_value)

    def check_storage(self, storage: Storage[ReplayBatch]) -> None:
        """Refuse a storage that does not know tasks, or holds too little of one of them.

        What a task gets until its context is cleared must fit, in a visit or in the first rollouts.
        Where fewer tasks than are visited exist, some get several shares of a rollout.
        """
        if not isinstance(storage, TaskReplayStorage):
            raise ConfigError(
                f"PEARL needs a TaskReplayStorage, got {type(storage).__name__}; choose the "
                "storage 'task-replay'"
            )
        visited, num_tasks = self.config.num_sampled_tasks, self._num_tasks
        in_visit = self._rollouts_per_visit * -(-visited // num_tasks)
        first = self._num_first_rollouts(num_tasks)
        most = max(in_visit, -(-first * visited // num_tasks)) * self._rows_per_task
        if storage.capacity < most * storage.num_steps:
            raise ConfigError(
                f"storage.capacity={storage.capacity} is less than the "
                f"{most * storage.num_steps} steps that a task gets until its context begins anew, "
                f"which are {most} rollouts of {storage.num_steps} steps in one environment; make "
                "it larger"
            )

    # The mathematics

    def loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (4) for encoder and critics; then, when due, (5) for the policy."""
        parts = {"critic": self.critic_loss, "policy": self.policy_loss}
        return self.sum_due(parts, batch, noise)

    def critic_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (4)."""
        mean, std = self.infer(batch)
        latent = mean + std * noise["latent"]  # Eq. (3)
        inner = cast("_SplitLoss", self.inner)
        output = inner.critic_loss(self._conditioned(batch, latent), noise)
        if not self.actor.encoder.is_stochastic:
            return output
        kl = kl_to_prior(mean, std).mean()
        return output.joined(LossOutput(self.hyper["kl_coef"] * kl, {"loss/kl": kl}))

    def policy_loss(self, batch: ReplayBatch, noise: Noise) -> LossOutput:
        """Eq. (5)."""
        with torch.no_grad():
            mean, std = self.infer(batch)
        latent = mean + std * noise["latent"]
        return cast("_SplitLoss", self.inner).policy_loss(self._conditioned(batch, latent), noise)

    def infer(self, batch: ReplayBatch) -> tuple[Tensor, Tensor]:
        """Infer the latent of each task from the contexts in a batch, mean and std `(M, L)`."""
        columns = {name: batch.extras[f"context/{name}"] for name in CONTEXT_COLUMNS}
        return self._posterior(columns, torch.ones_like(columns["reward"]))

    def draw_update_noise(self, batch: ReplayBatch) -> Noise:
        """Draw for the latents, and what the inner algorithm needs."""
        self.inner.generator = self.generator  # the one that is seeded and saved
        shape = len(batch.extras["context/reward"]), self.actor.config.latent_dim
        latent = torch.randn(shape, generator=self.generator, device=self.device)
        noise = {**self.inner.draw_update_noise(batch), "latent": latent}
        if "nearby" in noise:  # SAC's smoothness compares neighbors with the same latent
            noise["nearby"] = F.pad(noise["nearby"], (0, shape[1]))
        return noise

    def _conditioned(self, batch: ReplayBatch, latent: Tensor) -> ReplayBatch:
        """Append each task's latent to its observations."""
        per_task = len(batch.reward) // len(latent)
        latents = latent.unsqueeze(1).expand(-1, per_task, -1).flatten(0, 1)
        assert isinstance(batch.observation, Tensor)
        assert isinstance(batch.next_observation, Tensor)
        return replace(
            batch,
            observation=self.actor.with_latent(batch.observation, latents),
            next_observation=self.actor.with_latent(batch.next_observation, latents),
            extras={},
        )

    # The rollouts of an iteration

    def _num_first_rollouts(self, num_tasks: int) -> int:
        """Return how many rollouts visit all tasks."""
        return -(-num_tasks // self.config.num_sampled_tasks)

    def _rollout_number(self) -> int:
        """Return which rollout of an iteration this is; negative while the run begins."""
        assert self._tasks is not None
        count = self._num_rollouts - self._num_first_rollouts(len(self._tasks))
        return count if count < 0 else count % self._rollouts_per_visit

    @property
    def _rollouts_per_visit(self) -> int:
        config = self.config
        return config.num_prior_rollouts + config.num_posterior_rollouts + config.num_extra_rollouts

    def update(self, storage: Storage[ReplayBatch]) -> dict[str, float]:
        """Store the rollout by task, and learn after the last one of an iteration."""
        assert isinstance(storage, TaskReplayStorage)  # see check_storage
        number, metrics = self._rollout_number(), {}
        is_context = number < self.config.num_prior_rollouts + self.config.num_posterior_rollouts
        rows = storage.num_envs // self.config.num_sampled_tasks
        storage.store_rollout(self._visited.repeat_interleave(rows), is_context=is_context)
        if number == self._rollouts_per_visit - 1:
            metrics = run_update(self, storage)
        self._num_rollouts += 1
        self._is_drawn = False
        next_number = self._rollout_number()
        if next_number <= 0:
            self._visit(next_number, storage)
        elif next_number >= self.config.num_prior_rollouts and is_context:
            with torch.no_grad():
                self._belief = torch.stack(self._posterior(*storage.context(self._visited)))
        return metrics

    def _visit(self, number: int, storage: TaskReplayStorage) -> None:
        """Choose the tasks of the next rollouts, and know nothing of them."""
        assert self._tasks is not None
        num_tasks, count = len(self._tasks), self.config.num_sampled_tasks
        if number < 0:
            self._visited = (self._num_rollouts * count + torch.arange(count)) % num_tasks
        else:
            generator = on_cpu(self.generator)
            rounds = [
                torch.randperm(num_tasks, generator=generator) for _ in range(0, count, num_tasks)
            ]
            self._visited = torch.cat(rounds)[:count]
            storage.clear_context(self._visited)
        self._belief = self._prior(count)

    def _posterior(self, columns: Mapping[str, Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        context = self.actor.context(*(columns[name] for name in CONTEXT_COLUMNS))
        mean, std = self.actor.encoder(context, mask.float())
        return mean, std

    # Acting

    def check_envs(self, envs: VecEnv) -> None:
        """Refuse environments that have no or too few tasks, or that the tasks do not divide."""
        tasks = with_tasks(envs)
        count = self.config.num_sampled_tasks
        self._rows_per_task = rows_per_task(tasks, count, "num_sampled_tasks")
        self._num_tasks = self._num_train_tasks(tasks)

    def before_rollout(self, envs: VecEnv) -> bool:
        """Give each row its task and a latent, and begin new episodes.

        Raises:
            ConfigError: when there are no tasks, or too few of them.
        """
        tasks = with_tasks(envs)
        rows = envs.num_envs // self.config.num_sampled_tasks
        if self._tasks is None:
            count = self._num_train_tasks(tasks)
            self._tasks = tasks.sample_tasks(count, on_cpu(self.generator))
            self._visited = self._visited % count
        if not self._is_drawn:
            mean, std = self._belief.repeat_interleave(rows, 1)
            noise = torch.randn(mean.shape, generator=self.generator, device=self.device)
            self._set_latents(mean + std * noise)
            self._is_drawn = True
        tasks.set_tasks(self._tasks[self._visited].repeat_interleave(rows, 0))
        return True

    def _num_train_tasks(self, envs: TaskVecEnv) -> int:
        available, asked = envs.num_tasks("train"), self.config.num_train_tasks
        if available is not None and available < (asked or 1):
            raise ConfigError(
                f"{envs.spec_id} has only {available} train tasks, got num_train_tasks={asked}; "
                "change one of them"
            )
        return asked or min(100, available or 100)

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Sample each row's action with its latent."""
        assert isinstance(observation, Tensor)
        is_rollout = len(observation) == len(self._latents)
        latent = self._latents if is_rollout else self.actor.belief
        return self.actor.act(observation, latent, noise)

    def _set_latents(self, latents: Tensor) -> None:
        if self._latents.shape != latents.shape:
            self._latents = torch.zeros_like(latents)
        self._latents.copy_(latents)  # in place, for compiled acting

    # Adaptation by hand, and evaluation

    @property
    def exploration_episodes(self) -> Sequence[int]:
        """One episode for each step of adaptation."""
        return [1] * self.config.num_exploration_episodes

    @property
    def train_tasks(self) -> Tensor | None:
        """The tasks that are learned from, `(N, ...)`; None before the first rollout."""
        return self._tasks

    def unadapted(self, num_tasks: int) -> Parameters:
        """Return beliefs without any context."""
        size = self.actor.encoder.in_features
        mean, std = self._prior(num_tasks)
        return {
            "mean": mean,
            "std": std,
            "context": torch.zeros(num_tasks, 0, size, device=self.device),
            "mask": torch.zeros(num_tasks, 0, device=self.device),
        }

    def explorers(
        self, policies: Parameters, num_envs: int, generator: torch.Generator
    ) -> Parameters:
        """Draw a latent for each row from the belief about its task."""
        rows = num_envs // len(policies["mean"])
        mean, std = (policies[name].repeat_interleave(rows, 0) for name in ("mean", "std"))
        noise = torch.randn(mean.shape, generator=generator, device=self.device)
        return {"mean": mean + std * noise}

    def act(
        self, policies: Parameters, observation: Observation, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Choose actions with the means of beliefs; see `MAML.act`."""
        assert isinstance(observation, Tensor)
        rows = len(observation) // len(policies["mean"])
        output = self.actor.act(observation, policies["mean"].repeat_interleave(rows, 0), noise)
        return output.action, output.env_action

    def adapt_to(self, policies: Parameters, rollout: Rollout) -> Parameters:
        """Add a rollout to the contexts of its M tasks, and infer the latents from all of them."""
        return _with_rollout(self.actor, policies, rollout)

    def get_exploration_policy(
        self, generator: torch.Generator | None = None
    ) -> ContextConditionedActor:
        """Return a copy of the actor with a latent drawn from the prior; use it in one task.

        Args:
            generator: draws it; None goes on with the one of training, whose later numbers are
                others then.
        """
        latents = self.explorers(self.unadapted(1), 1, generator or self.generator)
        return self.actor.with_belief(latents["mean"][0])

    def adapt_policy(
        self,
        exploration_policy: ContextConditionedActor,
        rollouts: Sequence[Rollout],
        generator: torch.Generator | None = None,
    ) -> ContextConditionedActor:
        """Adapt a policy to one task.

        Args:
            exploration_policy: from `get_exploration_policy`, whose encoder infers the latent; it
                stays as it is.
            rollouts: `(T, B, ...)` of that task.
            generator: draws a latent from the posterior, with which to explore further; None takes
                the posterior's mean, with which to act as well as it can.

        Returns:
            A copy that acts with that latent.

        Raises:
            ConfigError: when there is no rollout, or none with a transition.
        """
        check_argument("rollouts", rollouts, Sequence[Rollout])
        if not any(bool(rollout.valid.any()) for rollout in rollouts):
            raise ConfigError("got no transitions to adapt to; collect exploration episodes first")
        policies = self.unadapted(1)
        for rollout in rollouts:
            policies = _with_rollout(exploration_policy, policies, rollout)
        if generator is not None:
            policies = self.explorers(policies, 1, generator)
        return exploration_policy.with_belief(policies["mean"][0])

    custom_evaluation = evaluate_adaptation

    # State

    def more_state(self) -> StateDict:
        """Return the tasks, those that are visited, and what is believed about them."""
        return {
            "tasks": self._tasks,
            "visited": self._visited,
            "belief": self._belief,
            "latents": self._latents,
            "is_drawn": self._is_drawn,
            "num_rollouts": self._num_rollouts,
        }

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
        saved = StateReader(state, "algorithm/more")
        tasks = saved.tensor_or_none("tasks")
        self._tasks = None if tasks is None else tasks.clone()
        self._visited = saved.tensor("visited", like=self._visited).to("cpu", copy=True)
        self._belief = saved.tensor("belief", like=self._belief).to(self.device, copy=True)
        self._set_latents(saved.tensor("latents").to(self.device))
        self._is_drawn = saved.flag("is_drawn")
        self._num_rollouts = saved.count("num_rollouts")


_REGULARIZERS = ("policy_mean_coef", "policy_std_coef", "policy_pre_activation_coef")


@torch.no_grad()
def _with_rollout(
    actor: ContextConditionedActor, policies: Parameters, rollout: Rollout
) -> Parameters:
    """Add a rollout to contexts, and infer the latents by an actor's encoder."""
    num_tasks = len(policies["mean"])
    assert isinstance(rollout.observation, Tensor)
    context = actor.context(
        rollout.observation, rollout.action, rollout.reward, next_observations(rollout)
    )
    added = group_by_task(context, num_tasks), group_by_task(rollout.valid, num_tasks)
    context = torch.cat([policies["context"], added[0]], 1)
    mask = torch.cat([policies["mask"], added[1].float()], 1)
    mean, std = actor.encoder(context, mask)
    return {"mean": mean, "std": std, "context": context, "mask": mask}


class _GaussianRegularizer(PolicyLossAddOn):
    """Penalizes a Gaussian policy's means, deviations and actions, as garage's PEARL does."""

    batch_types = (ReplayBatch,)

    def __init__(self, algorithm: PEARL) -> None:
        super().__init__()
        self._algorithm = algorithm

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the weighted mean squares; those of actions, μ² + σ², are sums over an action."""
        if not isinstance(distribution, SquashedGaussian | DiagonalGaussian):
            raise ConfigError(
                f"{', '.join(_REGULARIZERS)} are for Gaussian policies; leave them at 0"
            )
        mean, log_std = distribution.mean.square(), distribution.log_std
        squares = mean, log_std.square(), (mean + (2.0 * log_std).exp()).sum(-1)
        term = torch.zeros((), device=mean.device)
        for name, square in zip(_REGULARIZERS, squares, strict=True):
            term = term + self._algorithm.hyper[name] * square.mean()
        return term, {"loss/policy_regularization": term}


def _of_inner(name: str) -> str:
    """Return a module's name in PEARL from its name in the inner algorithm."""
    return f"actor.inner{name.removeprefix('actor')}" if name.startswith("actor") else name
