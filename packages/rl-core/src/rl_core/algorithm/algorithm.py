"""The abstract class of all algorithms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rl_core.actor import ActionOutput, Actor, CompiledActing
from rl_core.algorithm.add_ons import AddOns, PolicyLossAddOn
from rl_core.algorithm.defaults import DefaultRecipe, EnvSpec
from rl_core.algorithm.evaluation import EvaluatedEpisodes
from rl_core.algorithm.hyper import Schedules, checked_config
from rl_core.algorithm.update import UpdateCallbacks, UpdateSchedule, run_update
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.compile.function import CompiledFunctions
from rl_core.config import Scheduled, type_arguments
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.gradients import (
    Gradients,
    GradientStep,
    Loss,
    LossModule,
    LossOutput,
    Noise,
    ParameterGroup,
    TargetNetwork,
    Weights,
)
from rl_core.nn.distributions import Distribution
from rl_core.seeding import set_generator_state, spawn_generator
from rl_core.stateful import StateReader, all_or_nothing
from rl_core.storage import Storage, TensorSpec
from rl_core.types import Observation, State, StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")


class Algorithm(ABC, Generic[ConfigT, BatchT]):
    """Learns from batches by minimizing a loss.

    A subclass writes `loss`, `default_recipe` and, on-policy, `prepare`, and may override what
    follows them. Acting, gradient steps in three forms, schedules and checkpoints are inherited.

    Every config field typed ``Scheduled`` becomes a 0-dim tensor in ``self.hyper`` that may
    change while running without recompiling anything.

    The constructor calls `resolve_config`, then `make_modules` (with add-ons, schedules and
    ``hyper`` at hand), `parameter_groups`, `target_networks` and `constant_modules`.

    Args:
        actor: what acts and is trained; on its device already.
        config: a frozen dataclass; None takes its defaults.
        add_ons: extra terms for the policy loss.

    Attributes:
        config_type: the dataclass of ``config``; read from ``Algorithm[ConfigT, BatchT]``.
        batch_type: of what `loss` takes; read from there too.
        exchanges_gradients: False for algorithms whose update is not a gradient step.
        takes_add_ons: True for algorithms that add `add_on_terms` to their policy loss.
        schedules: of the hyper-parameters that may change.
        hyper: their current values.
        gradients: takes the gradient steps.
        compiled: which functions are compiled, and how.
        generator: draws the noise of gradient steps.
        modules: what the loss uses, by name.

    Raises:
        ConfigError: for an actor, config or add-on of another type, or contradictory options.
    """

    config_type: ClassVar[type]
    batch_type: ClassVar[type]
    exchanges_gradients: ClassVar[bool] = True
    takes_add_ons: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "__orig_bases__" in cls.__dict__:  # or they are inherited
            cls.config_type, cls.batch_type = type_arguments(cls, Algorithm)

    def __init__(
        self,
        actor: Actor,
        config: ConfigT | None = None,
        *,
        add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn] = (),
    ) -> None:
        if not isinstance(actor, Actor):
            raise ConfigError(f"actor: expected Actor, got {type(actor).__name__}")
        self.actor = actor
        self.device = actor.device
        self.config: ConfigT = self.resolve_config(checked_config(self, config))
        if add_ons and not self.takes_add_ons:  # or they would be ignored
            raise ConfigError(f"{type(self).__name__} takes no add-ons; leave add_ons out")
        self.add_ons = AddOns(add_ons, self.batch_type, actor)
        self.schedules = Schedules(self.config, self.device)
        self.hyper = self.schedules.current
        # Other weights come with other noise: both follow torch.manual_seed, or a recipe's seed.
        self.generator = spawn_generator(torch.initial_seed(), "algorithm", self.device)
        self.callbacks = UpdateCallbacks()
        self.modules = {"actor": actor, **self.make_modules(), "add_ons": self.add_ons}
        self._loss_module = LossModule(self.loss, self.modules, self.hyper)
        learned = self.parameter_groups(), self.target_networks(), self.constant_modules()
        self.gradients: GradientStep[BatchT] = GradientStep(self._loss_module, self.hyper, *learned)
        self.acting = CompiledActing(self.explore, actor, self.extras)
        self.compiled = CompiledFunctions(
            {"acting": self.acting.function, "update": self.gradients.compiled}
        )
        self.add_ons.take()

    # What a subclass writes

    @abstractmethod
    def loss(self, batch: BatchT, noise: Noise) -> LossOutput:
        """Compute the loss of a batch with the noise that `draw_update_noise` drew for this step.

        Tensors in, tensors out, no branch on a tensor's value. Compiled code keeps numbers, and the
        algorithm's own tensors, as it first saw them: change what changes in place. Where groups
        move one after another it is called for each; `sum_due` computes what is needed.
        """

    @classmethod
    @abstractmethod
    def default_recipe(cls, env: EnvSpec) -> DefaultRecipe:
        """Name the actor and the storage that the algorithm wants for an environment."""

    def prepare(self, rollout: Rollout) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
        """Estimate advantages and targets of a rollout `(T, B, ...)` with the weights it came from.

        Returns:
            Columns to attach, each `(T, B, ...)`, at least those of a `RolloutBatch`; and 0-dim
            metrics by path.
        """
        raise ConfigError(f"{type(self).__name__} does not learn from rollouts")

    # What a subclass may override: learning

    def resolve_config(self, config: ConfigT) -> ConfigT:
        """Return the config with what follows from the actor, or raise ConfigError for a misfit."""
        return config

    @cached_property
    def schedule(self) -> UpdateSchedule:
        """How collection and gradient steps take turns, by the config's options of these names."""
        return UpdateSchedule.of(self.config)

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

    def check_envs(self, envs: VecEnv) -> None:
        """Raise ConfigError, before a run, for environments in which it cannot learn."""

    def check_storage(self, storage: Storage[BatchT]) -> None:
        """Raise ConfigError, before a run, for a storage, of the right type, with unfit options."""

    def before_epochs(self, storage: Storage[BatchT]) -> Mapping[str, Tensor]:
        """Do what an update does once before its gradient steps, and return 0-dim metrics by path.

        The storage is prepared already; `whole_batch` takes all of it.
        """
        return {}

    def after_epochs(self, storage: Storage[BatchT]) -> Mapping[str, Tensor]:
        """Do the same after the gradient steps; the storage still holds what they learned from."""
        return {}

    def more_state(self) -> StateDict:
        """Return what a subclass keeps beyond modules and hyper-parameters; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""

    # What a subclass may override: acting

    @property
    def collects(self) -> bool:
        """Whether it learns from what acting brings; if not, a run's steps are gradient steps."""
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

    def before_rollout(self, envs: VecEnv) -> bool:
        """Prepare the environments for a new rollout; return whether all begin new episodes first.

        It may be called again before the first step, when a run is resumed there.
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
        on_step: Callable[[int, int], None],
    ) -> Mapping[str, EvaluatedEpisodes] | None:
        """Evaluate in the algorithm's own way; None, the default, runs the policy as it is.

        Args:
            envs: separate environments.
            num_episodes: number of episodes in each stage.
            seed: seed of all random numbers.
            deterministic: take the mode of the policy instead of sampling.
            before_step: call it before each step of the environments.
            on_step: call it after each, with the numbers of episodes finished and of steps so far.

        Returns:
            The episodes of each stage, such as before and after adaptation; the last is the result.
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

        The default samples the policy. Arguments are those of `Actor.get_action`.
        """
        return self.actor.get_action(observation, state, noise, False, episode_start)

    def explorer(self) -> Callable[..., ActionOutput]:
        """Return `explore` for an evaluation, with a noise process of its own if it has one."""
        return self.explore

    @torch.no_grad()
    def acting_step(
        self,
        observation: Observation,
        state: State,
        noise: Tensor | None,
        deterministic: bool = False,
        episode_start: Tensor | None = None,
    ) -> ActionOutput:
        """Choose actions without a gradient, exploring unless ``deterministic``; see `explore`."""
        if deterministic or noise is None:
            return self.actor.get_action(observation, state, noise, deterministic, episode_start)
        return self.acting(observation, state, noise, episode_start)

    # Inherited: learning

    def sum_due(self, parts: Mapping[str, Loss[BatchT]], batch: BatchT, noise: Noise) -> LossOutput:
        """Sum the losses, by group, of what the gradient step moves now; outside of one, of all."""
        return self._loss_module.sum_due(parts, batch, noise)

    def compute_loss(
        self,
        batch: BatchT,
        noise: Noise | None = None,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> LossOutput:
        """Compute the loss at the current or at explicit parameters, and draw noise not given.

        Parameters have the names of `named_parameters`; what is missing keeps its value. The loss
        is differentiable in them to any order, which is what MAML needs.
        """
        noise = self.draw_update_noise(batch) if noise is None else noise
        if parameters is None:
            return self.loss(batch, noise)
        return self._loss_module.at(parameters, batch, noise)

    def named_parameters(self) -> dict[str, Tensor]:
        """Return every parameter of the loss by name."""
        return dict(self._loss_module.named_parameters())

    def gradient_step(self, batch: BatchT) -> Mapping[str, Tensor]:
        """Take one fused step, and return per-sample results for the storage, each `(N,)`."""
        return self.gradients.step(batch, self.draw_update_noise(batch))

    def compute_gradients(self, batch: BatchT) -> Gradients:
        """Compute gradients to be shipped or applied later; nothing changes."""
        return self.gradients.compute_gradients(batch, self.draw_update_noise(batch))

    def apply_gradients(self, gradients: Gradients | None = None) -> None:
        """Clip, step and move targets, with given gradients or those computed last."""
        self.gradients.apply_gradients(gradients)

    def update(self, storage: Storage[BatchT]) -> dict[str, float]:
        """Learn from what the storage holds, and return the metrics of preparing it."""
        return run_update(self, storage)

    def read_metrics(self) -> dict[str, float]:
        """Return the gradient steps' metrics, averaged since the last reading."""
        return self.gradients.read_metrics()

    def add_on_terms(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum the add-ons' terms of the policy loss, with their metrics; see `AddOns.terms`."""
        terms, metrics = self.add_ons.terms(batch, distribution, info) if self.add_ons else ([], {})
        return sum(terms, torch.zeros((), device=self.device)), metrics

    # Inherited: hyper-parameters, weights and state

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: Scheduled
    ) -> None:
        """Change a hyper-parameter while running, by a number or a schedule of the whole run.

        Raises:
            ConfigError: when there is no such hyper-parameter, or the config refuses the value.
        """
        self.schedules.change(parameter_name, new_parameter_value)

    def get_weights(self, acting_only: bool = False) -> Weights:
        """Return copies for workers: of all modules and hyper-parameters, or only of the actor."""
        return Weights.of(self.actor if acting_only else self._loss_module, self.gradients.count)

    def set_weights(self, weights: Weights, acting_only: bool = False) -> bool:
        """Take over weights, and return True, unless they are older than the ones held."""
        if weights.version < self.gradients.count:
            return False
        weights.load_into(self.actor if acting_only else self._loss_module)
        self.gradients.count = weights.version
        return True

    def state_dict(self) -> StateDict:
        """Return weights, optimizer state, schedules, counters and the generator's state."""
        return {
            **self._loss_module.state(),
            "gradients": self.gradients.state_dict(),
            "schedules": self.schedules.state_dict(),
            "generator": self.generator.get_state(),
            "compiled": self.compiled.state_dict(),
            "add_ons": self.add_ons.more_state(),
            "more": self.more_state(),
        }

    @all_or_nothing
    def load_state_dict(self, state: StateDict) -> None:
        """Take over a `state_dict`, or raise CheckpointError where another algorithm's."""
        saved = StateReader(state, "algorithm")
        saved.expect(self.state_dict())
        self.load_modules(state)
        self.schedules.load_state_dict(saved.tree("schedules"))
        self.gradients.load_state_dict(saved.tree("gradients"))
        set_generator_state(self.generator, saved.tensor("generator"))
        self.compiled.load_state_dict(saved.tree("compiled"))
        self.add_ons.load_more_state(saved.reader("add_ons"))
        self.load_more_state(saved.tree("more"))

    def load_modules(self, state: StateDict) -> None:
        """Take over modules, what is frozen, and hyper-parameters, from any kind of device."""
        self._loss_module.load(StateReader(state, "algorithm"))


AnyAlgorithm: TypeAlias = Algorithm[Any, Any]
"""An algorithm of whatever config and batches; collector and trainer treat all alike."""
