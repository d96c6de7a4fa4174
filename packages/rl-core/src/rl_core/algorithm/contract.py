"""The abstract class of all algorithms: what each one gets besides its definition."""

import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.algorithm.add_on import PolicyLossAddOn, PreparedRollout
from rl_core.algorithm.add_ons import AddOns
from rl_core.algorithm.behaviour import Behaviour
from rl_core.algorithm.definition import Definition
from rl_core.algorithm.hyper import check_value, saved_schedule, schedules_of
from rl_core.algorithm.update import run_update
from rl_core.algorithm.watch import UpdateWatch
from rl_core.algorithm.weights import Weights
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.compile import CompiledFunction
from rl_core.config import Schedule, as_schedule
from rl_core.errors import ConfigError, nearest
from rl_core.gradients import (
    Gradients,
    GradientStep,
    HyperParameters,
    LossModule,
    LossOutput,
    Noise,
)
from rl_core.nn.distributions import Distribution
from rl_core.seeding import generator_state, set_generator_state, spawn_generators
from rl_core.stateful import StateReader
from rl_core.storage import Storage
from rl_core.types import Observation, StateDict

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")


class Algorithm(Behaviour, Definition[BatchT], Generic[ConfigT, BatchT]):
    """Learns from batches by minimising a loss.

    A subclass gives `schedule`, `loss` and, on-policy, `prepare`: see `Definition`. Acting,
    gradient steps in their three forms, schedules of hyper-parameters, weights and checkpoints
    come with it.

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
        super().__init__(actor)
        self.config: ConfigT = self.config_type() if config is None else config
        _check_type("config", self.config, self.config_type)
        if type(self.config) is not self.config_type:
            raise ConfigError(
                f"config is a {type(self.config).__name__}, and {type(self).__name__} would leave "
                f"what it adds without effect; expected {self.config_type.__name__}, or an "
                "algorithm whose config_type it is"
            )
        self.device = actor.device
        self.add_ons = AddOns(add_ons, self.batch_type)
        self.add_ons.setup(actor, self.device)
        self.schedules = schedules_of(self.config)
        self._progress = 0.0
        self.hyper = HyperParameters({n: s.value(0.0) for n, s in self.schedules.items()}).to(
            self.device
        )
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

    def is_due(self, group: str) -> bool:
        """Return whether the gradient step at hand moves a parameter group.

        A loss asks this to leave out what would be computed in vain, and its metrics with it.
        """
        return self._modules.is_due(group)

    def if_set(self, name: str) -> str | None:
        """Return a hyper-parameter's name, or None where the config leaves it None."""
        return None if getattr(self.config, name) is None else name

    def _compiled_functions(self) -> Mapping[str, CompiledFunction]:
        return {**super()._compiled_functions(), "update": self.gradients.compiled}

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

    def prepare_add_ons(self, rollout: Rollout) -> PreparedRollout:
        """Let the add-ons look at a fresh rollout, each at what the one before it made of it."""
        return self.add_ons.prepare(rollout, self.generator)

    # Hyper-parameters

    def set_progress(self, progress: float) -> None:
        """Move every scheduled hyper-parameter to a point of the run.

        Args:
            progress: fraction of the run that is over, in [0, 1].
        """
        self._progress = progress
        for name, schedule in self.schedules.items():
            if not schedule.is_constant:
                self.hyper[name].fill_(schedule.value(progress))

    def update_algorithm_parameter(
        self, parameter_name: str, new_parameter_value: float | Schedule
    ) -> None:
        """Change a hyper-parameter while running; learning rates reach the optimiser at once.

        A schedule begins where the run is: it is one of the whole run.

        Raises:
            ConfigError: when there is no such hyper-parameter, or the config refuses the value.
        """
        if parameter_name not in self.schedules:
            hint = nearest(parameter_name, self.schedules)
            raise ConfigError(
                f"{type(self).__name__} has no parameter '{parameter_name}' that may change{hint}"
            )
        try:
            schedule = as_schedule(new_parameter_value)
        except ConfigError as error:
            raise ConfigError(f"{parameter_name}: {error}") from error
        check_value(self.config, parameter_name, new_parameter_value)
        self.schedules[parameter_name] = schedule
        self.hyper[parameter_name].fill_(schedule.value(self._progress))

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
            "compiled": {
                name: " ".join(sorted(compiled.adopted))
                for name, compiled in self._compiled_functions().items()
            },
            "add_ons": self.add_ons.more_state(),
            "more": self.more_state(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        Raises:
            CheckpointError: when it belongs to an algorithm built otherwise.
        """
        saved = StateReader(state, "algorithm")
        self._saved_schedules(state)  # refused before anything is taken over
        self.load_modules(state)
        self.load_schedules(state)
        self.gradients.load_state_dict(saved.tree("gradients"))
        set_generator_state(self.generator, saved.tensor("generator"))
        adopted = saved.reader("compiled")
        for name, compiled in self._compiled_functions().items():
            compiled.adopted = set(adopted.text(name).split())
        self.add_ons.load_more_state(saved.reader("add_ons"))
        self.load_more_state(saved.tree("more"))

    def load_schedules(self, state: StateDict) -> None:
        """Take over the hyper-parameters of a state returned by `state_dict`, and nothing else.

        Raises:
            CheckpointError: when it belongs to an algorithm built otherwise.
        """
        self.schedules = self._saved_schedules(state)

    def _saved_schedules(self, state: StateDict) -> dict[str, Schedule]:
        saved = StateReader(state, "algorithm").reader("schedules")
        saved.expect(self.schedules)
        return {name: saved_schedule(saved, self.config, name) for name in self.schedules}

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
