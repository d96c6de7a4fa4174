r"""Model-agnostic meta-learning: initial weights from which a policy adapts in a few steps.

Source: Finn et al. 2017, https://arxiv.org/abs/1703.03400, Algorithm 3.

For each task $i$, with rollouts $D_i^k$ of the policy $\theta_i^k$ and the loss $L$ of the inner
algorithm:

(1) $\theta_i^0 = \theta, \quad
    \theta_i^{k+1} = \theta_i^k - \alpha \circ \nabla_{\theta_i^k} L(\theta_i^k; D_i^k)$

(2) $\min_\theta \frac1M \sum_i L(\theta_i^K; D_i^K)$, by Adam

$\alpha$ is a number, or learned for each parameter (Meta-SGD, Li et al. 2017,
https://arxiv.org/abs/1707.09835). Only the policy's parameters adapt. `rl_meta.maml_trpo` moves
$\theta$ by TRPO's step in the place of (2).

Deviations from the paper: advantages are estimated by GAE above a linear baseline that is fitted
to each task and rollout (`rl_meta.baseline`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cached_property
from typing import ClassVar, TypeVar, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_map

from rl_core.actor import ActionOutput, Actor
from rl_core.algorithm import (
    Algorithm,
    AnyAlgorithm,
    DefaultRecipe,
    EnvSpec,
    UpdateSchedule,
    run_epochs,
)
from rl_core.batch import Rollout, RolloutBatch
from rl_core.config import ComponentSpec, Schedule, check_argument
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.gradients import LossOutput, Noise, ParameterGroup
from rl_core.gradients.trust_region import Parameters
from rl_core.nn.distributions import Distribution, to_columns
from rl_core.returns import discounted_returns, gae, normalize
from rl_core.spaces import is_bounded
from rl_core.stateful import StateReader
from rl_core.storage import HasRollouts, Storage
from rl_core.types import Json, Observation, State, StateDict, map_observation
from rl_meta.baseline import baseline_features, episode_steps, fit_baseline
from rl_meta.config import MAMLConfig, MAMLPPOConfig, MAMLVPGConfig
from rl_meta.evaluation import evaluate_adaptation
from rl_meta.inner_algorithm import (
    SchedulesWithInner,
    build_inner,
    copy_actor,
    inner_class,
    on_cpu,
    refuse_unused,
    rows_per_task,
    with_tasks,
)
from rl_meta.rollouts import join_tasks, one_rollout, split_tasks, stacked, task_batch

OptionsT = TypeVar("OptionsT", bound=MAMLConfig)

_INNER_OPTIONS: Mapping[str, dict[str, Json]] = {
    "vpg": {
        "value_learning_rate": "none",
        "normalize_advantage": False,
        "entropy_method": "no_entropy",  # else an eighth of the time goes to a coefficient of 0
    },
    "ppo": {
        "normalize_advantage": "none",
        "clip_range": 0.5,
        "entropy_method": "no_entropy",
        "value_loss_coef": 0.0,  # else the loss has that of values that nobody learns
    },
}
"""What the inner algorithms are told unless the user says otherwise."""

_UNUSED = (
    # MAML estimates advantages
    *("gamma", "gae_lambda", "advantage_estimator", "positive_advantage"),
    # above a baseline of its own
    *("value_target", "value_loss_coef", "use_clipped_value_loss", "value_clip_range"),
    # and takes the steps
    *("optimizer", "target_kl", "kl_target", "kl_penalty", "stop_entropy_gradient"),
)
"""Options of on-policy algorithms that have no effect on the inner one."""

_USED_VALUES: Mapping[str, tuple[Json, ...]] = {
    "normalize_advantage": ("minibatch",),  # all of a task's samples
    "entropy_method": ("regularized", "no_entropy"),
    "surrogate": ("clip", "plain"),  # the weight of "kl-penalty" adapts in the inner's own update
}
"""Values that act, of options of which others do not."""


class MAML(Algorithm[OptionsT, RolloutBatch]):
    """MAML over an on-policy algorithm; a subclass says how the meta-parameters move.

    All tasks of a meta-batch are rows of one vector environment: row b has task
    ``b // (B / meta_batch_size)``. An update of the training loop is one rollout. After the first
    ``num_grad_updates`` rollouts each task's policy adapts; after one more the meta-parameters
    move, and new tasks begin. Scheduled options, such as ``inner_lr``, move only in between, so
    that all of a meta-update adapts by the same ones.

    Args:
        actor: a policy that shares no parameters with its value function, which is not used.
        config: options.

    Attributes:
        inner: the inner algorithm, of which only the loss is used.
        adapted: the present policy of each task by parameter, each `(M, ...)`.

    Raises:
        ConfigError: when the actor or the inner algorithm cannot be adapted.
    """

    schedules: SchedulesWithInner

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Build the inner algorithm, and the step sizes where they are learned."""
        self.inner = _inner_algorithm(self.actor, self.config)
        unused = [*_UNUSED, *_of_its_steps(self.inner)]
        self.schedules = SchedulesWithInner(self.config, self.device, self.inner.schedules, unused)
        self.hyper = self.schedules.current
        self._policy = _Policy(self.actor)
        self._kept: list[RolloutBatch] = []
        self._tasks: Tensor | None = None
        prefixes = tuple(f"{name}." for name in self.actor.policy_modules)
        self._names = tuple(
            f"actor.{name}"
            for name, _ in self.actor.named_parameters()
            if name.startswith(prefixes)
        )
        self._frozen: frozenset[str] = frozenset()
        self._check_actor()
        size, num_tasks = float(self.hyper["inner_lr"]), self.config.meta_batch_size
        parameters = self.policy_parameters()
        self.adapted = {name: value.clone() for name, value in self.unadapted(num_tasks).items()}
        self._step_sizes = nn.ParameterList()
        if self.config.learn_inner_lr:
            self._step_sizes.extend(torch.full_like(value, size) for value in parameters.values())
        return {"step_sizes": self._step_sizes}

    def constant_modules(self) -> tuple[str, ...]:
        """Leave the value function alone."""
        return tuple(f"actor.{name}" for name in self.actor.value_modules)

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """Update once per rollout, with all of it."""
        return UpdateSchedule.of(self.config, num_minibatches=1)

    @classmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Take 20 environments for each of 20 tasks, and rollouts as long as an episode.

        Actions with bounds are scaled to them: a step of adaptation then moves the policy about as
        far whatever their size is.
        """
        actor: dict[str, Json] = {"normalize_observations": False}
        if isinstance(env.action_space, spaces.Box) and is_bounded(env.action_space).all():
            actor |= {"squash_actions": True, "initial_log_std": -0.5}
        return DefaultRecipe(
            actor=ComponentSpec("actor", "on-policy", actor),
            storage=ComponentSpec(
                "storage", "rollout", {"num_steps": env.max_episode_steps or 100}
            ),
            env={"num_envs": 400},
            algorithm={},
            trainer={"scale_rewards": False, "compile": "off", "num_test_episodes": 20},
        )

    # The mathematics

    def loss(self, batch: RolloutBatch, noise: Noise) -> LossOutput:
        """Eq. (2), for a batch `(K + 1, M, N, ...)`: K rollouts to adapt to, and one to judge."""
        adapted = self._adapted_to(batch, self.policy_parameters(), self._step_sizes)

        def judge(parameters: Parameters, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
            output = self.inner.compute_loss(batch, {}, parameters)
            return output.loss, output.metrics.get("loss/policy", output.loss)

        loss, policy_term = vmap(judge)(adapted, one_rollout(batch, -1))
        return LossOutput(loss.mean(), {"loss/policy": policy_term.mean()})

    def inner_loss(self, parameters: Parameters, batch: RolloutBatch) -> Tensor:
        """Return L of Eq. (1), 0-dim, for one task's policy and samples `(N, ...)`."""
        return self.inner.compute_loss(batch, {}, parameters).loss

    def adapt(
        self,
        parameters: Parameters,
        batch: RolloutBatch,
        step_sizes: Iterable[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Take one step of Eq. (1) for every task; what is frozen in θ stays as it is.

        Args:
            parameters: each `(M, ...)`.
            batch: `(M, N, ...)`.
            step_sizes: α of each parameter, where they are learned; None takes the present ones.
        """
        gradients = vmap(grad(self.inner_loss))(parameters, batch)
        sizes = list(self._step_sizes if step_sizes is None else step_sizes)
        sizes = sizes or [self.hyper["inner_lr"]] * len(parameters)
        if self.config.first_order:
            gradients = {name: gradient.detach() for name, gradient in gradients.items()}
        return {
            name: value if name in self._frozen else value - size * gradients[name]
            for (name, value), size in zip(parameters.items(), sizes, strict=True)
        }

    def _note_frozen(self) -> None:
        """Note what does not learn; within loss functions, which exchange it, nobody can tell."""
        named = self._policy.named_parameters()
        self._frozen = frozenset(name for name, part in named if not part.requires_grad)

    def policy_parameters(self) -> dict[str, Tensor]:
        """Return θ by name."""
        named = dict(self._policy.named_parameters())
        return {name: named[name] for name in self._names}

    def distribution_at(self, parameters: Parameters, observation: Observation) -> Distribution:
        """Return one policy at explicit parameters."""
        return self._policy.distribution(parameters, observation)

    def _adapted_to(
        self, batch: RolloutBatch, parameters: Parameters, step_sizes: Iterable[Tensor]
    ) -> Parameters:
        """Return the parameters after all K steps of Eq. (1) from θ, each `(M, ...)`."""
        num_rollouts, num_tasks = batch.mask.shape[:2]
        adapted = {
            name: parameters[name].expand(num_tasks, *parameters[name].shape)
            for name in self._names
        }
        for step in range(num_rollouts - 1):
            adapted = self.adapt(adapted, one_rollout(batch, step), step_sizes)
        return adapted

    @torch.no_grad()
    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages above a baseline fitted to each task, with the adapted policies."""
        columns, episode_return = self.estimate(self.adapted, rollout)
        return columns, {f"meta/return_after_{len(self._kept)}_steps": episode_return}

    def estimate(self, adapted: Parameters, rollout: Rollout) -> tuple[dict[str, Tensor], Tensor]:
        """Return the columns of a `RolloutBatch`, each `(T, B, ...)`, and the mean return.

        Args:
            adapted: the policies that collected, each `(M, ...)`.
            rollout: `(T, B, ...)`, whose rows are those of M tasks, one after the other.
        """
        num_tasks, hyper = len(next(iter(adapted.values()))), self.hyper

        def by_task(column: Tensor) -> Tensor:  # (T, B, ...) to (M, T, B / M, ...)
            return split_tasks(column, 1, num_tasks).movedim(1, 0)

        def evaluate(
            parameters: Parameters, observation: Observation, action: Tensor
        ) -> tuple[Tensor, dict[str, Tensor]]:
            distribution = self._policy.distribution(parameters, observation)
            log_prob = distribution.log_prob(action)
            return log_prob, to_columns(distribution, tuple(log_prob.shape))

        observation = map_observation(by_task, rollout.observation)
        log_prob, policy = vmap(evaluate)(adapted, observation, by_task(rollout.action))

        step = episode_steps(rollout.episode_start)
        features = baseline_features(_flat(rollout.observation, 2), step)
        ends = (rollout.reward, torch.zeros_like(rollout.reward), rollout.terminated)
        returns = discounted_returns(*ends, rollout.truncated, hyper["gamma"])
        weights = fit_baseline(
            by_task(features).flatten(1, 2),
            by_task(returns).flatten(1, 2),
            by_task(rollout.valid).flatten(1, 2),
            self.config.baseline_ridge,
        )  # (M, F)
        weights = weights.repeat_interleave(rollout.reward.shape[1] // num_tasks, 0)  # (B, F)
        value = (features * weights).sum(-1)
        last = baseline_features(_flat(rollout.next_observation, 1), step[-1] + 1)
        next_value = torch.cat([value[1:], (last * weights).sum(-1).unsqueeze(0)])
        if len(rollout.final_index):
            row, env = rollout.final_index.unbind(1)
            final = baseline_features(_flat(rollout.final_observation, 1), step[row, env] + 1)
            next_value[row, env] = (final * weights[env]).sum(-1)
        value, next_value = value.float(), next_value.float()
        advantage = gae(
            rollout.reward,
            value,
            next_value,
            rollout.terminated,
            rollout.truncated,
            hyper["gamma"],
            hyper["gae_lambda"],
        )
        target = advantage + value
        if self.config.normalize_advantage:
            split = by_task(advantage), by_task(rollout.valid.float())
            advantage = join_tasks(vmap(normalize)(*split))
        columns = {
            "log_prob": join_tasks(log_prob),
            "value": value,
            "advantage": advantage,
            "value_target": target,
            **{name: join_tasks(column) for name, column in policy.items()},
        }
        num_episodes = (rollout.episode_start & rollout.valid).sum().clamp(min=1)
        return columns, (rollout.reward * rollout.valid).sum() / num_episodes

    # The rollouts of a meta-update

    def update(self, storage: Storage[RolloutBatch]) -> dict[str, float]:
        """Adapt to the rollout, or after the last one move the meta-parameters."""
        assert isinstance(storage, HasRollouts)  # asked by the trainer
        rollout = storage.rollout()
        columns, prepared = self.prepare(rollout)
        metrics = dict(prepared)
        kept = task_batch(rollout, columns, self.config.meta_batch_size)
        self.gradients.begin_update()
        if len(self._kept) < self.config.num_grad_updates:
            self._set_adapted(self._next_adapted(kept))
            self._kept.append(kept)
            self.schedules.is_held = True  # or the meta-step would adapt otherwise than this did
        else:
            batch = stacked([*self._kept, kept])
            run_epochs(self, lambda: [batch], lambda one: metrics.update(self.meta_step(one)))
            self.gradients.guard.check()
            if self.actor.normalizes_observations:
                self.actor.update_normalization(rollout.observation, rollout.valid)
            self._kept, self._tasks = [], None
            self._set_adapted(self.policy_parameters())
            self.schedules.release()
        storage.after_update()
        return {name: float(value) for name, value in metrics.items()}

    @torch.no_grad()
    def _next_adapted(self, batch: RolloutBatch) -> Parameters:
        """Adapt; say so where the inner loss wants more than there is, or what it gives is NaN."""
        try:
            adapted = self.adapt(self.adapted, batch)
        except KeyError as error:
            raise ConfigError(
                f"the loss of inner_algorithm='{self.config.inner_algorithm}' reads {error} of its "
                "batches, which MAML does not know: it estimates advantages in its own way, and "
                "never calls the inner algorithm's prepare; use one that does without"
            ) from error
        if all(bool(value.isfinite().all()) for value in adapted.values()):
            return adapted
        self.gradients.guard.refuse(
            self.gradients.count + 1,
            batch,
            "adapting to a rollout gave parameters that are not finite; the policies of the tasks "
            "stayed as they were. Lower inner_lr, or look for extreme rewards and observations",
        )
        return self.adapted

    def meta_step(self, batch: RolloutBatch) -> Mapping[str, Tensor]:
        """Move the meta-parameters by Eq. (2), once.

        Args:
            batch: `(K + 1, M, N, ...)`.

        Returns:
            0-dim metrics by path.
        """
        self.gradient_step(batch)
        return {}

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: float | Schedule
    ) -> None:
        """Change an option while running, see `Algorithm`; it moves between two meta-updates.

        Raises:
            ConfigError: when it may not change, as ``inner_lr`` where step sizes are learned.
        """
        if parameter_name == "inner_lr" and self.config.learn_inner_lr:
            raise ConfigError("inner_lr is where learned step sizes begin, and may not change")
        super().update_algorithm_parameter(parameter_name, new_parameter_value)

    @torch.no_grad()
    def _set_adapted(self, parameters: Parameters) -> None:
        for name, value in self.adapted.items():
            value.copy_(parameters[name])

    # Acting

    def check_envs(self, envs: VecEnv) -> None:
        """Refuse environments that have no tasks, or that the tasks do not divide."""
        rows_per_task(with_tasks(envs), self.config.meta_batch_size, "meta_batch_size")

    def before_rollout(self, envs: VecEnv) -> bool:
        """Give each row its task, drawn anew for each meta-update, and begin new episodes."""
        tasks, num_tasks = with_tasks(envs), self.config.meta_batch_size
        self._note_frozen()
        if self._tasks is None:
            self._tasks = tasks.sample_tasks(num_tasks, on_cpu(self.generator))
            self._set_adapted(self.policy_parameters())
        tasks.set_tasks(self._tasks.repeat_interleave(envs.num_envs // num_tasks, 0))
        return True

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Sample each row's action from the adapted policy of its task."""
        return ActionOutput(*self.act(self.adapted, observation, noise), state)

    def act(
        self, adapted: Parameters, observation: Observation, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Choose actions for rows of several tasks.

        Args:
            adapted: the policies, each `(M, ...)`.
            observation: shape `(B, ...)`, rows of the M tasks one after the other.
            noise: shape `(B, ...)`; None takes the modes.

        Returns:
            The actor's and the environment's actions, each `(B, ...)`.
        """
        num_tasks = len(next(iter(adapted.values())))

        def split(part: Tensor) -> Tensor:
            return split_tasks(part, 0, num_tasks)

        def choose(
            parameters: Parameters, observation: Observation, noise: Tensor | None
        ) -> tuple[Tensor, Tensor]:
            inputs: tuple[object, ...] = ("get_action", observation, {}, noise, noise is None)
            output = functional_call(self._policy, dict(parameters), inputs)
            return output.action, output.env_action

        drawn = None if noise is None else split(noise)
        in_dims = (0, 0, None if noise is None else 0)
        chosen = vmap(choose, in_dims)(adapted, map_observation(split, observation), drawn)
        action, env_action = (part.flatten(0, 1) for part in chosen)
        return action, env_action

    # Adaptation by hand, and evaluation

    @property
    def exploration_episodes(self) -> Sequence[int]:
        """So many episodes for each step of adaptation."""
        return [self.config.num_exploration_episodes] * self.config.num_grad_updates

    @property
    def train_tasks(self) -> Tensor | None:
        """None: every meta-update draws tasks anew."""
        return None

    def unadapted(self, num_tasks: int) -> Parameters:
        """Return θ for each task."""
        return {
            name: value.detach().expand(num_tasks, *value.shape)
            for name, value in self.policy_parameters().items()
        }

    def explorers(
        self, policies: Parameters, num_envs: int, generator: torch.Generator
    ) -> Parameters:
        """Return the policies: they explore as they are."""
        return policies

    def get_exploration_policy(self) -> Actor:
        """Return a copy of the policy before adaptation."""
        return copy_actor(self.actor)

    def adapt_policy(self, exploration_policy: Actor, rollouts: Sequence[Rollout]) -> Actor:
        """Adapt a policy to one task.

        Args:
            exploration_policy: from `get_exploration_policy`; it stays as it is.
            rollouts: `(T, B, ...)` of that task, one for each gradient step: the first by this
                policy, each further one by the policy adapted to those before.

        Returns:
            The adapted policy.

        Raises:
            ConfigError: when there is no rollout, one without a transition, or more than
                ``num_grad_updates``.
        """
        check_argument("rollouts", rollouts, Sequence[Rollout])
        if not 1 <= len(rollouts) <= self.config.num_grad_updates:
            raise ConfigError(
                f"got {len(rollouts)} rollouts to adapt to; expected one for each of the "
                f"num_grad_updates={self.config.num_grad_updates} gradient steps"
            )
        if not all(bool(rollout.valid.any()) for rollout in rollouts):
            raise ConfigError("a rollout has no transitions; collect exploration episodes first")
        named = dict(_Policy(exploration_policy).named_parameters())
        adapted = {name: named[name].detach().unsqueeze(0) for name in self._names}
        for rollout in rollouts:
            adapted = self.adapt_to(adapted, rollout)
        policy = copy_actor(exploration_policy)
        with torch.no_grad():
            for name, parameter in _Policy(policy).named_parameters():
                if name in adapted:
                    parameter.copy_(adapted[name][0])
        return policy

    @torch.no_grad()
    def adapt_to(self, adapted: Parameters, rollout: Rollout) -> dict[str, Tensor]:
        """Take one step of Eq. (1) for the M tasks of a rollout; see `estimate`."""
        self._note_frozen()
        columns, _ = self.estimate(adapted, rollout)
        num_tasks = len(next(iter(adapted.values())))
        return self.adapt(adapted, task_batch(rollout, columns, num_tasks))

    custom_evaluation = evaluate_adaptation

    # State

    def more_state(self) -> StateDict:
        """Return the tasks, their policies, and the rollouts of the meta-update so far."""
        return {
            "tasks": self._tasks,
            "adapted": dict(self.adapted),
            "kept": [asdict(batch) for batch in self._kept],
        }

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""
        saved = StateReader(state, "algorithm/more")
        saved.expect(("tasks", "adapted", "kept"))
        tasks, adapted = saved.tensor_or_none("tasks"), saved.reader("adapted")
        adapted.expect(self.adapted)
        parameters = {n: adapted.tensor(n, like=value) for n, value in self.adapted.items()}
        kept = [batch.as_dataclass(RolloutBatch) for batch in saved.readers("kept")]
        self._tasks = None if tasks is None else tasks.clone()
        self._set_adapted(parameters)
        self._kept = tree_map(lambda column: column.to(self.device, copy=True), kept)
        self.schedules.is_held = bool(self._kept)

    def _check_actor(self) -> None:
        value = {
            parameter
            for name in self.actor.value_modules
            for parameter in self.actor.get_submodule(name).parameters()
        }
        shared = [
            name
            for name, parameter in self._policy.named_parameters()
            if (name in self._names) is (parameter in value)  # in both, or in neither
        ]
        if shared or self.actor.is_recurrent:
            raise ConfigError(
                "MAML adapts feed-forward policies that share nothing with the value function; "
                + (f"shared: {', '.join(shared)}" if shared else "the actor is recurrent")
            )


class MAMLVPG(MAML[MAMLVPGConfig]):
    """MAML with the policy gradient inside and outside.

    Args:
        actor: a policy that shares no parameters with its value function, which is not used.
        config: options.
    """

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Learn the policy, and step sizes if asked to."""
        learned = ("step_sizes",) if self.config.learn_inner_lr else ()
        return (
            ParameterGroup(
                name="policy",
                modules=(*(f"actor.{name}" for name in self.actor.policy_modules), *learned),
                learning_rate="outer_lr",
                max_grad_norm=self.config.if_set("max_grad_norm"),
                optimizer=self.config.optimizer,
            ),
        )


class MAMLPPO(MAMLVPG):
    """MAML with PPO's clipped loss inside and outside.

    Args:
        actor: a policy that shares no parameters with its value function, which is not used.
        config: options.
    """

    config_type: ClassVar[type] = MAMLPPOConfig


class _Policy(nn.Module):
    """An actor whose methods can be called at explicit parameters, by the names of losses."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, method: str, *inputs: object) -> object:
        """Call a method of the actor."""
        return getattr(self.actor, method)(*inputs)

    def distribution(self, parameters: Parameters, observation: Observation) -> Distribution:
        """Return the policy at explicit parameters."""
        inputs: tuple[object, ...] = ("distribution", observation, {})
        distribution, _ = functional_call(self, dict(parameters), inputs)
        return cast("Distribution", distribution)


def _inner_algorithm(actor: Actor, config: MAMLConfig) -> AnyAlgorithm:
    name = config.inner_algorithm
    cls = inner_class(name)
    if cls.batch_type is not RolloutBatch or not cls.exchanges_gradients or issubclass(cls, MAML):
        raise ConfigError(
            f"inner_algorithm='{name}' has no loss of its policy on rollouts, through which MAML "
            "could differentiate; use vpg, a2c, ppo or a plug-in like them"
        )
    options = config.inner_options
    inner = build_inner(name, {**_INNER_OPTIONS.get(name, {}), **options}, actor)
    usual = {one.name: one.default for one in fields(inner.config)} | _INNER_OPTIONS.get(name, {})
    used = [option for option, values in _USED_VALUES.items() if options.get(option) in values]
    used += [option for option, value in options.items() if usual.get(option) == value]
    unused = [*_UNUSED, *_USED_VALUES, *_of_its_steps(inner)]
    refuse_unused(name, options, [option for option in unused if option not in used])
    if any(not parameter.startswith("actor.") for parameter in inner.named_parameters()):
        raise ConfigError(
            f"inner_algorithm='{name}' learns networks besides the actor's, which do not adapt; "
            "use vpg, a2c, ppo or a plug-in like them"
        )
    return inner


def _of_its_steps(inner: AnyAlgorithm) -> Iterable[str]:
    """Return the names of the hyper-parameters of an algorithm's own gradient steps."""
    for group in inner.parameter_groups():
        yield from filter(None, (group.learning_rate, group.max_grad_norm))


def _flat(observation: Observation, batch_axes: int) -> Tensor:
    """Return all numbers of observations as vectors `(*batch, D)`."""
    parts = [observation] if isinstance(observation, Tensor) else list(observation.values())
    flat = [part.reshape(*part.shape[:batch_axes], -1).float() for part in parts]
    return torch.cat(flat, dim=-1)
