"""The abstract class of all algorithms."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rl_core.actor import ActionOutput, Actor
from rl_core.addon import PolicyLossAddOn, PreparedRollout
from rl_core.algorithm.acting import ActingGraphs
from rl_core.algorithm.defaults import DefaultRecipe, EnvSpec
from rl_core.algorithm.hyper import check_value, schedules_of
from rl_core.algorithm.schedule import UpdateSchedule
from rl_core.algorithm.update import run_update
from rl_core.algorithm.watch import UpdateWatch
from rl_core.algorithm.weights import Weights
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.errors import CheckpointError, ConfigError, nearest
from rl_core.gradients import (
    CompileMode,
    Gradients,
    GradientStep,
    HyperParameters,
    LossModule,
    LossOutput,
    Noise,
    ParameterGroup,
    TargetNetwork,
)
from rl_core.nn.distributions import Distribution
from rl_core.schedules import Schedule, as_schedule, parse_schedule
from rl_core.seeding import generator_state, set_generator_state
from rl_core.stateful import StateReader
from rl_core.storage import Storage, TensorSpec
from rl_core.types import Observation, State, StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")


class Algorithm(ABC, Generic[ConfigT, BatchT]):
    """Learns from batches by minimising a loss.

    A subclass gives `schedule`, `loss` and, on-policy, `prepare`. Acting, gradient steps in their
    three forms, schedules of hyper-parameters, weights and checkpoints come from here.

    Every config field typed ``Scheduled`` becomes a 0-dim tensor in ``self.hyper`` that may
    change while running without recompiling anything.

    Args:
        actor: what acts and is trained; on its device already.
        config: a frozen dataclass; None takes its defaults.
        add_ons: extra terms for the policy loss.

    Attributes:
        config_type: the dataclass of ``config``; read from ``Algorithm[ConfigT, BatchT]``.
        batch_type: the batch dataclass that `loss` takes; read from there too.
        exchanges_gradients: False for algorithms whose update is no gradient step.

    Raises:
        ConfigError: when actor, config or an add-on is none, or options contradict each other.
    """

    config_type: ClassVar[type]
    batch_type: ClassVar[type]
    exchanges_gradients: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Algorithm):
                chosen = dict(zip(origin.__parameters__, typing.get_args(base), strict=True))  # type: ignore[attr-defined]  # of generic classes
                cls.config_type = chosen.get(origin.config_type, origin.config_type)
                cls.batch_type = chosen.get(origin.batch_type, origin.batch_type)

    def __init__(
        self,
        actor: Actor,
        config: ConfigT | None = None,
        *,
        add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn] = (),
    ) -> None:
        _check_type("actor", actor, Actor)
        self.actor = actor
        self.config: ConfigT = self.config_type() if config is None else config
        _check_type("config", self.config, self.config_type)
        self.device = actor.device
        self.add_ons = nn.ModuleList(_check_add_ons(add_ons, self.batch_type))
        for add_on in self.add_ons:
            typing.cast(PolicyLossAddOn, add_on).setup(actor, self.device)
        self.schedules = schedules_of(self.config)
        self.hyper = HyperParameters({n: s.value(0.0) for n, s in self.schedules.items()}).to(
            self.device
        )
        self.generator = torch.Generator(self.device)
        self.compile_mode: CompileMode = "off"
        self.watch = UpdateWatch()
        self._is_recurrent = actor.is_recurrent
        self._acting = ActingGraphs(self.explore)
        self._modules = LossModule(
            self.loss,
            {"actor": actor, **self.make_modules(), "add_ons": self.add_ons},
            self.hyper,
        )
        self.gradients: GradientStep[BatchT] = GradientStep(
            self._modules,
            self.hyper,
            self.parameter_groups(),
            self.target_networks(),
            self.constant_modules(),
        )

    # What a subclass says of itself

    @property
    @abstractmethod
    def schedule(self) -> UpdateSchedule:
        """How collection and gradient steps take turns."""

    @abstractmethod
    def loss(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss: tensors in, tensors out, no branch on a tensor's value.

        Args:
            batch: the data.
            noise: what `draw_update_noise` drew for this step.
        """

    @classmethod
    @abstractmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Say by name which actor and storage the algorithm wants for an environment."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and targets of a rollout with the behaviour's weights.

        Args:
            rollout: `(T, B, ...)`.

        Returns:
            Columns to attach, each `(T, B, ...)`, at least those of a `RolloutBatch`; and 0-dim
            metrics by path.
        """
        raise ConfigError(f"{type(self).__name__} does not learn from rollouts")

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make what else the loss uses, such as target networks, by name; nothing by default.

        It is called once, with actor, config, schedules and ``hyper`` at hand.
        """
        return {}

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Say which parameters are learned, and how; the default is Adam over everything."""
        return (ParameterGroup(name="actor", modules=("actor", "add_ons")),)

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Say which modules follow which groups; none by default."""
        return ()

    def constant_modules(self) -> tuple[str, ...]:
        """Name modules, such as ``actor.critics``, that the loss leaves alone; none by default."""
        return ()

    def draw_update_noise(self, batch: BatchT) -> Noise:
        """Draw the random numbers of one gradient step from ``self.generator``; none by default."""
        return {}

    @property
    def extras(self) -> Mapping[str, TensorSpec]:
        """Say what `acting_step` answers in ``extras``, without the environment axis."""
        return {}

    @property
    def collects(self) -> bool:
        """Whether it learns from what acting brings.

        If not, environments are only evaluated in, and a run's steps are gradient steps:
        ``schedule.update_every`` of them in each update.
        """
        return True

    @property
    def needs_episode_start(self) -> bool:
        """Whether acting looks at ``episode_start``; recurrent actors do."""
        return self._is_recurrent

    @property
    def uses_objects(self) -> bool:
        """Whether it was given objects that no recipe can name, such as add-ons."""
        return any(add_on.uses_objects for add_on in self._listed_add_ons())

    @property
    def warm_up_steps(self) -> int:
        """Environment transitions with random actions that `observe` sees before training.

        They are no part of the run: nothing is stored, and environments start anew after them.
        """
        return max((add_on.warm_up_steps for add_on in self._listed_add_ons()), default=0)

    def observe(self, observation: Observation) -> None:
        """Look at observations `(N, ...)` of the warm-up."""
        for add_on in self._listed_add_ons():
            add_on.observe(observation)

    def is_due(self, group: str) -> bool:
        """Return whether the gradient step at hand moves a parameter group.

        A loss asks this to leave out what would be computed in vain, and its metrics with it.
        """
        return self._modules.is_due(group)

    def if_set(self, name: str) -> str | None:
        """Return a hyper-parameter's name, or None where the config leaves it None."""
        return None if getattr(self.config, name) is None else name

    # Acting

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what `acting_step` needs for these steps."""
        return self.actor.draw_noise(batch_shape, generator)

    def explore(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions while collecting: a pure function, which is compiled where that pays.

        The default samples the policy; exploration beyond the policy's own belongs here.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, one step of what `draw_noise` drew.
            episode_start: shape `(B,)`, bool; only recurrent actors need it.
        """
        return self.actor.get_action(observation, state, noise, False, episode_start)

    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions, exploring unless ``deterministic``.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, one step of what `draw_noise` drew.
            deterministic: take the mode, explore nothing.
            episode_start: shape `(B,)`, bool.
        """
        if deterministic or noise is None:
            return self.actor.get_action(observation, state, noise, deterministic, episode_start)
        if self.compile_mode == "off" or self._is_recurrent or self.extras:
            return self.explore(observation, state, noise, episode_start)
        action, env_action = self._acting(
            observation, noise, must_compile=self.compile_mode == "on"
        )
        return ActionOutput(action, env_action, None, state)

    def random_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor,
        generator: torch.Generator,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose uniformly random actions, for the first ``start_steps`` of a run.

        Extras are those that acting would have answered, and so is the state but for memories
        that see actions.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, as for `acting_step`.
            generator: draws the actions; on the actor's device.
            episode_start: shape `(B,)`, bool.
        """
        output = self.acting_step(observation, state, noise, episode_start=episode_start)
        actor = self.actor
        action = actor.random_actions(len(noise), generator)
        return replace(
            output,
            action=action,
            env_action=actor.to_env_action(action),
            log_prob=None,
            state=actor.remember_action(observation, action, state, output.state, episode_start),
        )

    # Learning

    def compute_loss(
        self,
        batch: BatchT,
        noise: Noise | None = None,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> LossOutput:
        """Compute the loss at the current or at explicit parameters.

        Args:
            batch: the data.
            noise: drawn now when not given.
            parameters: by the names of `named_parameters`; what is missing keeps its value. The
                loss is differentiable in them to any order, which is what MAML needs.

        Raises:
            ConfigError: when there is no parameter of a name.
        """
        noise = self.draw_update_noise(batch) if noise is None else noise
        if parameters is None:
            return self.loss(batch, noise)
        return self._modules.at(parameters, batch, noise)

    def named_parameters(self) -> dict[str, Tensor]:
        """Return every parameter of the loss by name."""
        return dict(self._modules.named_parameters())

    def gradient_step(self, batch: BatchT) -> Mapping[str, Tensor]:
        """Take one fused step: loss, gradient, clipping, optimiser, targets.

        Returns:
            Per-sample results for the storage, each `(N,)`.
        """
        noise = self.draw_update_noise(batch)
        if self.compile_mode != "off" and not self.gradients.is_compiled:
            compiled = self.gradients.compile(self.compile_mode, batch, noise)
            self.compile_mode = self.compile_mode if compiled else "off"
        return self.gradients.step(batch, noise)

    def compute_gradients(self, batch: BatchT) -> Gradients:
        """Compute gradients to be shipped or applied later; nothing changes."""
        return self.gradients.compute_gradients(
            batch, self.draw_update_noise(batch), num_samples=_batch_size(batch)
        )

    def apply_gradients(self, gradients: Gradients | None = None) -> None:
        """Clip, step and move targets, with given gradients or those computed last."""
        self.gradients.apply_gradients(gradients)

    def update(self, storage: Storage[BatchT]) -> dict[str, float]:
        """Learn from what the storage holds, as the schedule says.

        Returns:
            Metrics of preparing the data; those of the gradient steps are in `read_metrics`.
        """
        return run_update(self, storage)

    def before_epochs(self, storage: Storage[BatchT]) -> Mapping[str, Tensor]:
        """Do what an update does once, before its gradient steps; nothing by default.

        Args:
            storage: prepared already; `whole_batch` takes all of it.

        Returns:
            0-dim metrics by path.
        """
        return {}

    def after_epochs(self, storage: Storage[BatchT]) -> Mapping[str, Tensor]:
        """Do what an update does once, after its gradient steps; nothing by default.

        Args:
            storage: which still holds what the steps learned from.

        Returns:
            0-dim metrics by path.
        """
        return {}

    def read_metrics(self) -> dict[str, float]:
        """Return the gradient steps' metrics, averaged since the last reading."""
        return self.gradients.read_metrics()

    def add_on_terms(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the add-ons' terms of the policy loss, with their metrics."""
        total = torch.zeros((), device=self.device)
        metrics: dict[str, Tensor] = {}
        for add_on in self._listed_add_ons():
            term, more = add_on.compute_loss_term(batch, distribution, info)
            total = total + term
            metrics.update(more)
        return total, metrics

    def prepare_add_ons(self, rollout: Rollout) -> PreparedRollout:
        """Let the add-ons look at a fresh rollout, each at what the one before it made of it."""
        prepared = PreparedRollout(rollout)
        for add_on in self._listed_add_ons():
            own = add_on.prepare(prepared.rollout, self.generator)
            prepared = PreparedRollout(
                own.rollout,
                {**prepared.columns, **own.columns},
                {**prepared.metrics, **own.metrics},
            )
        return prepared

    def _listed_add_ons(self) -> list[PolicyLossAddOn]:
        return typing.cast("list[PolicyLossAddOn]", list(self.add_ons))

    # Hyper-parameters

    def set_progress(self, progress: float) -> None:
        """Move every scheduled hyper-parameter to a point of the run.

        Args:
            progress: fraction of the run that is over, in [0, 1].
        """
        for name, schedule in self.schedules.items():
            if schedule.is_constant:
                continue
            self.hyper[name].fill_(schedule.value(progress))

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: float | Schedule
    ) -> None:
        """Change a hyper-parameter while running; learning rates reach the optimiser at once.

        Raises:
            ConfigError: when there is no such hyper-parameter, or the config refuses the value.
        """
        if parameter_name not in self.schedules:
            hint = nearest(parameter_name, self.schedules)
            raise ConfigError(
                f"{type(self).__name__} has no parameter '{parameter_name}' that may change{hint}"
            )
        schedule = as_schedule(new_parameter_value)
        check_value(self.config, parameter_name, new_parameter_value)
        self.schedules[parameter_name] = schedule
        self.hyper[parameter_name].fill_(schedule.value(0.0))

    # Weights and state

    def get_weights(self, acting_only: bool = False) -> Weights:
        """Return copies of the weights: all modules', or only what a collector needs to act."""
        module: nn.Module = self.actor if acting_only else self._modules
        tensors = {name: value.detach().clone() for name, value in module.state_dict().items()}
        return Weights(self.gradients.count, tensors)

    def set_weights(self, weights: Weights, acting_only: bool = False) -> bool:
        """Take over weights unless they are older than the ones held.

        Returns:
            Whether they were taken.

        Raises:
            ConfigError: when they belong to other networks.
        """
        if weights.version < self.gradients.count:
            return False
        module: nn.Module = self.actor if acting_only else self._modules
        try:
            module.load_state_dict(dict(weights.tensors))
        except RuntimeError as error:
            raise ConfigError(f"the weights do not fit: {error}") from error
        self.gradients.count = weights.version
        return True

    def state_dict(self) -> StateDict:
        """Return weights, optimiser state, schedules, counters and the generator's state."""
        return {
            "modules": dict(self._modules.state_dict()),
            "gradients": self.gradients.state_dict(),
            "schedules": {name: str(schedule) for name, schedule in self.schedules.items()},
            "generator": generator_state(self.generator),
            "add_ons": {
                str(index): add_on.more_state()
                for index, add_on in enumerate(self._listed_add_ons())
            },
            "more": self.more_state(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it belongs to an algorithm built otherwise.
        """
        saved = StateReader(state, "algorithm")
        schedules, modules = saved.reader("schedules"), saved.reader("modules")
        schedules.expect(self.schedules)
        current = self._modules.state_dict()
        modules.expect(current)
        loaded = {name: self._saved_schedule(schedules, name) for name in self.schedules}
        self._modules.load_state_dict(
            {name: modules.tensor(name, like=tensor) for name, tensor in current.items()}
        )
        self.schedules = loaded
        self.gradients.load_state_dict(saved.tree("gradients"))
        set_generator_state(self.generator, saved.tensor("generator"))
        add_ons = saved.reader("add_ons")
        for index, add_on in enumerate(self._listed_add_ons()):
            add_on.load_more_state(add_ons.tree(str(index)))
        self.load_more_state(saved.tree("more"))

    def _saved_schedule(self, saved: StateReader, name: str) -> Schedule:
        try:
            schedule = parse_schedule(saved.text(name))
            check_value(self.config, name, schedule)
        except ConfigError as error:
            raise CheckpointError(f"the saved schedule of '{name}' is wrong: {error}") from error
        return schedule

    def more_state(self) -> StateDict:
        """Return what a subclass keeps beyond modules and hyper-parameters; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""


AnyAlgorithm: TypeAlias = Algorithm[Any, Any]
"""An algorithm of whatever config and batches; collector and trainer treat all alike."""


def _check_add_ons(
    add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn], batch_type: type
) -> list[PolicyLossAddOn]:
    listed = [add_ons] if isinstance(add_ons, PolicyLossAddOn) else list(add_ons)
    for add_on in listed:
        if not isinstance(add_on, PolicyLossAddOn):
            raise ConfigError(
                f"add_ons: expected PolicyLossAddOn objects, got {type(add_on).__name__}"
            )
        if batch_type not in add_on.batch_types:
            known = " or ".join(known.__name__ for known in add_on.batch_types)
            raise ConfigError(
                f"add_ons: {type(add_on).__name__} reads {known}, but the algorithm learns from "
                f"{batch_type.__name__}; leave it out"
            )
    return listed


def _batch_size(batch: object) -> int:
    mask = getattr(batch, "mask", None)
    if isinstance(mask, Tensor):
        return int((mask > 0.0).sum())
    reward = getattr(batch, "reward", None)
    return len(reward) if isinstance(reward, Tensor) else 1


# What a subclass puts in their place; see `Algorithm.__init_subclass__`.
Algorithm.config_type = ConfigT  # type: ignore[assignment]  # a placeholder
Algorithm.batch_type = BatchT  # type: ignore[assignment]  # a placeholder


def _check_type(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise ConfigError(f"{name}: expected {expected.__name__}, got {type(value).__name__}")
