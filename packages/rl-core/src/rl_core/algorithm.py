"""The algorithm contract: what to minimise; everything around it is here, once."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import gymnasium
import torch
from torch import Tensor, nn

from rl_core.actor import ActionOutput, Actor
from rl_core.addon import PolicyLossAddOn
from rl_core.batch import Rollout, RolloutBatch
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
from rl_core.graphs import compile_graph
from rl_core.nn.distributions import Distribution
from rl_core.recipe import ComponentSpec
from rl_core.schedules import Schedule, as_schedule, parse_schedule
from rl_core.seeding import generator_state, set_generator_state
from rl_core.storage import AnyStorage, Storage, TensorSpec
from rl_core.types import Json, Observation, State, StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")

ActingGraph: TypeAlias = Callable[[Observation, Tensor], tuple[Tensor, Tensor]]
"""From observation and noise to the actor's and the environment's action."""

Scheduled = float | Schedule
"""The type of a config field that may change while running: a number, or a schedule of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSchedule:
    """How data collection and gradient steps take turns.

    Attributes:
        start_steps: environment transitions collected with uniformly random actions first.
        update_after: no update before this many environment transitions.
        update_every: environment transitions between updates; None takes the storage's rollout.
        num_epochs: passes over the data in an update.
        num_mini_batch: minibatches per epoch.
        mini_batch_size: samples per minibatch; on-policy, only one of the two is given.
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: episodes per evaluation.

    Raises:
        ConfigError: for a negative or zero count.
    """

    start_steps: int = 0
    update_after: int = 0
    update_every: int | None = None
    num_epochs: int = 1
    num_mini_batch: int | None = None
    mini_batch_size: int | None = None
    test_every: int | None = None
    num_test_episodes: int = 5

    def __post_init__(self) -> None:
        for name in ("start_steps", "update_after"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in (
            "update_every",
            "num_epochs",
            "num_mini_batch",
            "mini_batch_size",
            "test_every",
            "num_test_episodes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters on their way from one worker to another.

    Attributes:
        version: how many gradient steps made them.
        tensors: parameters and buffers by name.
    """

    version: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """What a recipe's defaults may depend on.

    Attributes:
        name: registered name or Gymnasium id.
        observation_space: of one environment.
        action_space: of one environment.
    """

    name: str
    observation_space: gymnasium.Space[object]
    action_space: gymnasium.Space[object]


@dataclass(frozen=True, slots=True)
class DefaultRecipe:
    """The parts an algorithm wants when the user names none.

    Attributes:
        actor: by registered name.
        storage: by registered name.
        env: options such as ``num_envs``.
        algorithm: options that differ from the config's defaults for this environment.
        trainer: options of the trainer.
    """

    actor: ComponentSpec
    storage: ComponentSpec
    env: Mapping[str, Json]
    algorithm: Mapping[str, Json]
    trainer: Mapping[str, Json]


class Algorithm(ABC, Generic[ConfigT, BatchT]):
    """Learns from batches by minimising a loss.

    A subclass gives `schedule`, `loss` and, on-policy, `prepare`. Acting, gradient steps in their
    three forms, schedules of hyper-parameters, weights and checkpoints come from here.

    Every config field typed ``Scheduled`` becomes a 0-dim tensor in ``self.hyper`` that may
    change while running without recompiling anything.

    Args:
        actor: what acts and is trained; on its device already.
        config: a frozen dataclass.
        modules: further modules that the loss uses, such as target networks, by name.
        add_ons: extra terms for the policy loss.

    Attributes:
        batch_type: the batch dataclass that `loss` takes.
        exchanges_gradients: False for algorithms whose update is no gradient step.

    Raises:
        ConfigError: when an add-on is none, or options contradict each other.
    """

    batch_type: ClassVar[type] = RolloutBatch
    exchanges_gradients: ClassVar[bool] = True

    def __init__(
        self,
        actor: Actor,
        config: ConfigT,
        *,
        modules: Mapping[str, nn.Module] | None = None,
        add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn] = (),
    ) -> None:
        self.actor = actor
        self.config = config
        self.device = actor.device
        self.add_ons = nn.ModuleList(_check_add_ons(add_ons))
        for add_on in self.add_ons:
            typing.cast(PolicyLossAddOn, add_on).setup(actor, self.device)
        self.schedules = _schedules_of(config)
        self.hyper = HyperParameters({n: s.value(0.0) for n, s in self.schedules.items()}).to(
            self.device
        )
        self.generator = torch.Generator(self.device)
        self.compile_mode: CompileMode = "off"
        self._is_recurrent = actor.is_recurrent
        self._acting_graphs: dict[torch.Size, ActingGraph] = {}
        self._modules = LossModule(
            self.loss,
            {"actor": actor, **(modules or {}), "add_ons": self.add_ons},
            self.hyper,
        )
        self.gradients: GradientStep[BatchT] = GradientStep(
            self._modules, self.hyper, self.parameter_groups(), self.target_networks()
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

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Say which parameters are learned, and how; the default is Adam over everything."""
        return (ParameterGroup(name="actor", modules=("actor", "add_ons")),)

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Say which modules follow which groups; none by default."""
        return ()

    def draw_update_noise(self, batch: BatchT) -> Noise:
        """Draw the random numbers of one gradient step from ``self.generator``; none by default."""
        return {}

    @property
    def extras(self) -> Mapping[str, TensorSpec]:
        """Say what `acting_step` answers in ``extras``, without the environment axis."""
        return {}

    @property
    def uses_objects(self) -> bool:
        """Whether it was given objects that no recipe can name, such as add-ons."""
        return len(self.add_ons) > 0

    # Acting

    def draw_noise(self, batch_shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draw what `acting_step` needs for these steps."""
        return self.actor.draw_noise(batch_shape, generator)

    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions while collecting; exploration beyond the policy's own belongs here.

        Args:
            observation: shape `(B, ...)`.
            state: recurrent state, each `(B, S)`.
            noise: shape `(B, ...)`, one step of what `draw_noise` drew.
            deterministic: take the mode, explore nothing.
            episode_start: shape `(B,)`, bool.
        """
        if self.compile_mode == "off" or deterministic or noise is None or self._is_recurrent:
            return self.actor.get_action(observation, state, noise, deterministic, episode_start)
        graph = self._acting_graphs.get(noise.shape)
        if graph is None:
            graph = self._acting_graphs[noise.shape] = self._compile_acting(observation, noise)
        action, env_action = graph(observation, noise)
        return ActionOutput(action, env_action, None, state)

    def _compile_acting(self, observation: Observation, noise: Tensor) -> ActingGraph:
        """Compile the actor's sampling where that gains something."""

        def act(observation: Observation, noise: Tensor) -> tuple[Tensor, Tensor]:
            output = self.actor.get_action(observation, {}, noise)
            return output.action, output.env_action

        if self.device.type != "cpu":
            return act
        try:
            graph: ActingGraph = compile_graph(act, (observation, noise), self.device)
        except Exception:
            if self.compile_mode == "on":
                raise
            return act
        return graph

    def random_step(self, num_envs: int, state: State, generator: torch.Generator) -> ActionOutput:
        """Choose uniformly random actions, for the first ``start_steps`` of a run."""
        action = self.actor.random_actions(num_envs, generator)
        return ActionOutput(action, self.actor.to_env_action(action), None, state)

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

    def read_metrics(self) -> dict[str, float]:
        """Return the gradient steps' metrics, averaged since the last reading."""
        return self.gradients.read_metrics()

    def add_on_terms(
        self, batch: RolloutBatch, distribution: Distribution, info: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the add-ons' terms of the policy loss, with their metrics."""
        total = torch.zeros((), device=self.device)
        metrics: dict[str, Tensor] = {}
        for add_on in self.add_ons:
            term, more = typing.cast(PolicyLossAddOn, add_on).compute_loss_term(
                batch, distribution, info
            )
            total = total + term
            metrics.update(more)
        return total, metrics

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
        _check_value(self.config, parameter_name, new_parameter_value)
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
            "more": self.more_state(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it belongs to an algorithm built otherwise.
        """
        modules, gradients, schedules, generator, more = (
            state[key] for key in ("modules", "gradients", "schedules", "generator", "more")
        )
        assert isinstance(modules, Mapping)
        assert isinstance(gradients, Mapping)
        assert isinstance(schedules, Mapping)
        assert isinstance(generator, Tensor)
        assert isinstance(more, Mapping)
        try:
            self._modules.load_state_dict(typing.cast("dict[str, Tensor]", dict(modules)))
        except RuntimeError as error:
            raise CheckpointError(f"the saved weights do not fit: {error}") from error
        self.gradients.load_state_dict(gradients)
        self.schedules = {name: parse_schedule(str(text)) for name, text in schedules.items()}
        set_generator_state(self.generator, generator)
        self.load_more_state(more)

    def more_state(self) -> StateDict:
        """Return what a subclass keeps beyond modules and hyper-parameters; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""


AnyAlgorithm: TypeAlias = Algorithm[Any, Any]
"""An algorithm of whatever config and batches; collector and trainer treat all alike."""


def run_update(algorithm: AnyAlgorithm, storage: AnyStorage) -> dict[str, float]:
    """Update an algorithm from a storage: the order of steps that almost all algorithms share.

    Args:
        algorithm: what learns.
        storage: what it learns from.

    Returns:
        The metrics of preparing a rollout; empty off-policy.
    """
    schedule = algorithm.schedule
    step = algorithm.gradients
    prepared: Mapping[str, Tensor] = {}
    rollout = None
    if algorithm.batch_type is RolloutBatch:
        rollout = storage.rollout()
        columns, prepared = algorithm.prepare(rollout)
        storage.attach(columns)
    storage.before_gradients()
    step.begin_phase()
    for _ in range(schedule.num_epochs):
        for batch in storage.generate_batches(schedule.num_mini_batch, schedule.mini_batch_size):
            storage.after_gradients(batch, algorithm.gradient_step(batch))
        if step.stopped:
            break
    if rollout is not None and step.learns:
        algorithm.actor.update_normalization(rollout.observation, rollout.valid)
    storage.after_update()
    return {name: float(value) for name, value in prepared.items()}


def _check_add_ons(
    add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn],
) -> list[PolicyLossAddOn]:
    listed = [add_ons] if isinstance(add_ons, PolicyLossAddOn) else list(add_ons)
    for add_on in listed:
        if not isinstance(add_on, PolicyLossAddOn):
            raise ConfigError(
                f"add_ons: expected PolicyLossAddOn objects, got {type(add_on).__name__}"
            )
    return listed


def _schedules_of(config: object) -> dict[str, Schedule]:
    """Find the fields that may change while running; those set to None are left out."""
    if not is_dataclass(config):
        raise ConfigError(f"config must be a dataclass, got {type(config).__name__}")
    hints = typing.get_type_hints(type(config))
    return {
        field.name: as_schedule(getattr(config, field.name))
        for field in fields(config)
        if Schedule in typing.get_args(hints[field.name])
        and getattr(config, field.name) is not None
    }


def _check_value(config: object, name: str, value: float | Schedule) -> None:
    """Let the config's own checks judge a new value."""
    assert is_dataclass(config)
    assert not isinstance(config, type)
    replace(config, **{name: value})


def _batch_size(batch: object) -> int:
    mask = getattr(batch, "mask", None)
    if isinstance(mask, Tensor):
        return int(mask.sum())
    reward = getattr(batch, "reward", None)
    return len(reward) if isinstance(reward, Tensor) else 1
