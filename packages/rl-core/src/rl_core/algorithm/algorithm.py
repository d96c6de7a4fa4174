"""The abstract class of all algorithms."""

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rl_core.actor import ActionOutput, Actor
from rl_core.algorithm.acting import CompiledActing, CompiledFunctions
from rl_core.algorithm.add_ons import AddOns, PolicyLossAddOn, PreparedRollout
from rl_core.algorithm.defaults import DefaultRecipe, EnvSpec
from rl_core.algorithm.hyper import Schedules
from rl_core.algorithm.update import UpdateSchedule, UpdateWatch, run_update
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.config import Schedule
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.gradients import (
    Gradients,
    GradientStep,
    LossModule,
    LossOutput,
    Noise,
    ParameterGroup,
    TargetNetwork,
    Weights,
)
from rl_core.nn.distributions import Distribution
from rl_core.seeding import generator_state, set_generator_state, spawn_generators
from rl_core.stateful import StateReader
from rl_core.storage import Storage, TensorSpec
from rl_core.types import Observation, State, StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")


class Algorithm(ABC, Generic[ConfigT, BatchT]):
    """Learns from batches by minimising a loss.

    A subclass writes `schedule`, `loss`, `default_recipe` and, on-policy, `prepare`. It may
    override what follows them below. Acting, gradient steps in their three forms, schedules of
    hyper-parameters, weights and checkpoints are inherited.

    Every config field typed ``Scheduled`` becomes a 0-dim tensor in ``self.hyper`` that may
    change while running without recompiling anything.

    The constructor calls, in this order: the add-ons' ``setup``, `make_modules` (with actor,
    config, schedules and ``hyper`` at hand), `parameter_groups`, `target_networks` and
    `constant_modules`.

    Args:
        actor: what acts and is trained; on its device already.
        config: a frozen dataclass; None takes its defaults.
        add_ons: extra terms for the policy loss.

    Attributes:
        config_type: the dataclass of ``config``; read from ``Algorithm[ConfigT, BatchT]``.
        batch_type: the batch dataclass that `loss` takes; read from there too.
        exchanges_gradients: False for algorithms whose update is not a gradient step.
        schedules: of the hyper-parameters that may change.
        hyper: their current values.
        gradients: takes the gradient steps.
        compiled: which functions are compiled, and how.
        generator: draws the noise of gradient steps.

    Raises:
        ConfigError: when actor, config or an add-on is of another type, or options contradict each
            other.
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
        self.device = actor.device
        self.config: ConfigT = self.config_type() if config is None else config
        _check_type("config", self.config, self.config_type)
        if type(self.config) is not self.config_type:
            raise ConfigError(
                f"config is a {type(self.config).__name__}, and {type(self).__name__} would ignore "
                f"what it adds; expected {self.config_type.__name__}, or an algorithm whose "
                "config_type it is"
            )
        self.add_ons = AddOns(add_ons, self.batch_type)
        self.add_ons.setup(actor, self.device)
        self.schedules = Schedules(self.config, self.device)
        self.hyper = self.schedules.current
        # Other weights come with other noise: both follow torch.manual_seed, or a recipe's seed.
        seeded = spawn_generators(torch.initial_seed(), ["algorithm"], self.device)
        self.generator = seeded["algorithm"]
        self.watch = UpdateWatch()
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
        self.acting = CompiledActing(self.explore, actor)
        self.compiled = CompiledFunctions(
            {"acting": self.acting.function, "update": self.gradients.compiled}
        )

    # What a subclass writes

    @property
    @abstractmethod
    def schedule(self) -> UpdateSchedule:
        """How collection and gradient steps take turns."""

    @abstractmethod
    def loss(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss: tensors in, tensors out, no branch on a tensor's value.

        Tensors of the algorithm's own that it reads, such as buffers, are changed in place and
        never replaced: compiled code keeps the ones that it saw first, as it keeps numbers.

        Args:
            batch: the data.
            noise: what `draw_update_noise` drew for this step.
        """

    @classmethod
    @abstractmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Name the actor and the storage that the algorithm wants for an environment."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and targets of a rollout with the weights that collected it.

        On-policy algorithms need it.

        Args:
            rollout: `(T, B, ...)`.

        Returns:
            Columns to attach, each `(T, B, ...)`, at least those of a `RolloutBatch`; and 0-dim
            metrics by path.
        """
        raise ConfigError(f"{type(self).__name__} does not learn from rollouts")

    # What a subclass may override: learning

    def make_modules(self) -> Mapping[str, nn.Module]:
        """Make what else the loss uses, such as target networks, by name; nothing by default."""
        return {}

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Return which parameters are learned, and how; the default is Adam over everything."""
        return (ParameterGroup(name="actor", modules=("actor", "add_ons")),)

    def target_networks(self) -> tuple[TargetNetwork, ...]:
        """Return which modules follow which groups; none by default."""
        return ()

    def constant_modules(self) -> tuple[str, ...]:
        """Name modules, such as ``actor.critics``, that the loss leaves alone; none by default."""
        return ()

    def draw_update_noise(self, batch: BatchT) -> Noise:
        """Draw the random numbers of one gradient step from ``self.generator``; none by default."""
        return {}

    def check_storage(self, storage: Storage[BatchT]) -> None:
        """Refuse a storage that cannot be learned from as configured; asked when a run is set up.

        That it gives batches of the right type, and sequences to a recurrent actor, is known.

        Args:
            storage: not allocated yet.

        Raises:
            ConfigError: when options of the two contradict each other.
        """
        return

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

    def prepare_add_ons(self, rollout: Rollout) -> PreparedRollout:
        """Let the add-ons look at a fresh rollout, each at what the one before it made of it."""
        return self.add_ons.prepare(rollout, self.generator)

    def more_state(self) -> StateDict:
        """Return what a subclass keeps beyond modules and hyper-parameters; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""

    # What a subclass may override: acting

    @property
    def collects(self) -> bool:
        """Whether it learns from what acting brings.

        If not, environments are only evaluated in, and a run's steps are gradient steps:
        ``schedule.update_every`` of them in each update.
        """
        return True

    @property
    def extras(self) -> Mapping[str, TensorSpec]:
        """What `acting_step` returns in ``extras``, without the environment axis."""
        return {}

    @property
    def needs_episode_start(self) -> bool:
        """Whether acting looks at ``episode_start``; recurrent actors do."""
        return self.actor.is_recurrent

    @property
    def uses_objects(self) -> bool:
        """Whether it was given objects that no recipe can name, such as add-ons."""
        return self.add_ons.uses_objects

    @property
    def warm_up_steps(self) -> int:
        """Environment transitions with random actions that `observe` sees before training.

        They are no part of the run: nothing is stored, and environments start anew after them.
        """
        return self.add_ons.warm_up_steps

    def observe(self, observation: Observation) -> None:
        """Look at observations `(N, ...)` of the warm-up."""
        self.add_ons.observe(observation)

    def before_rollout(self, envs: VecEnv) -> bool:
        """Prepare the environments for a rollout that is about to begin; nothing by default.

        It may be called again before the first step, when a run is resumed there.

        Returns:
            Whether all environments begin new episodes first.
        """
        return False

    def custom_evaluation(
        self,
        envs: VecEnv,
        num_episodes: int,
        *,
        seed: int,
        deterministic: bool,
        before_step: Callable[[], None],
    ) -> Mapping[str, Sequence[float]] | None:
        """Evaluate in the algorithm's own way; None, the default, runs the policy as it is.

        Args:
            envs: separate environments.
            num_episodes: number of episodes in each stage.
            seed: seed of all random numbers.
            deterministic: take the mode of the policy instead of sampling.
            before_step: call it before each step of the environments.

        Returns:
            Episode returns by stage, such as before and after adaptation; the last is the result.
        """
        return None

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
        """Choose actions, exploring unless ``deterministic``; arguments as for `explore`."""
        if deterministic or noise is None:
            return self.actor.get_action(observation, state, noise, deterministic, episode_start)
        if not (self.actor.is_recurrent or self.extras):
            actions = self.acting(observation, noise)
            if actions is not None:
                return ActionOutput(*actions, None, state)
        return self.explore(observation, state, noise, episode_start)

    # Inherited: acting and learning

    def is_due(self, group: str) -> bool:
        """Return whether the current gradient step moves a parameter group.

        A loss asks this to skip what would be computed in vain, and its metrics with it.
        """
        return self._modules.is_due(group)

    def if_set(self, name: str) -> str | None:
        """Return a hyper-parameter's name, or None where the config leaves it None."""
        return None if getattr(self.config, name) is None else name

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
        return self.gradients.step(batch, self.draw_update_noise(batch))

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
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
        *,
        learned: bool | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the add-ons' terms of the policy loss, with their metrics.

        Args:
            batch: the minibatch.
            distribution: the policy's, at the batch's observations.
            info: what the loss has computed so far, each 0-dim.
            learned: only add-ons that have parameters to learn, or only those that have none; None
                takes all.
        """
        terms, metrics = self.add_ons.terms(batch, distribution, info, learned=learned)
        return sum(terms, torch.zeros((), device=self.device)), metrics

    # Inherited: hyper-parameters, weights and state

    def set_progress(self, progress: float) -> None:
        """Move every scheduled hyper-parameter to a point of the run.

        Args:
            progress: fraction of the run that is over, in [0, 1].
        """
        self.schedules.set_progress(progress)

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: float | Schedule
    ) -> None:
        """Change a hyper-parameter while running; learning rates reach the optimiser at once.

        A schedule is one of the whole run, and starts at the run's current progress.

        Raises:
            ConfigError: when there is no such hyper-parameter, or the config refuses the value.
        """
        self.schedules.change(parameter_name, new_parameter_value)

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
            "schedules": self.schedules.state_dict(),
            "generator": generator_state(self.generator),
            "compiled": self.compiled.state_dict(),
            "add_ons": self.add_ons.more_state(),
            "more": self.more_state(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it belongs to an algorithm built otherwise.
        """
        saved = StateReader(state, "algorithm")
        self.schedules.read(saved.tree("schedules"))  # refused before anything is taken over
        self.load_modules(state)
        self.schedules.load_state_dict(saved.tree("schedules"))
        self.gradients.load_state_dict(saved.tree("gradients"))
        set_generator_state(self.generator, saved.tensor("generator"))
        self.compiled.load_state_dict(saved.tree("compiled"))
        self.add_ons.load_more_state(saved.reader("add_ons"))
        self.load_more_state(saved.tree("more"))

    def load_modules(self, state: StateDict) -> None:
        """Take over all that was learned of a state returned by `state_dict`, which is what acts.

        Nothing else of it is looked at, so that it may come from another kind of device.

        Raises:
            CheckpointError: when it belongs to an algorithm built otherwise.
        """
        modules = StateReader(state, "algorithm").reader("modules")
        current = self._modules.state_dict()
        modules.expect(current)
        self._modules.load_state_dict(
            {name: modules.tensor(name, like=tensor) for name, tensor in current.items()}
        )


AnyAlgorithm: TypeAlias = Algorithm[Any, Any]
"""An algorithm of whatever config and batches; collector and trainer treat all alike."""


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
