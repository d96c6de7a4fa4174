"""What MAML and PEARL share: their inner algorithm, checks of tasks, and copies of actors."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TypeVar, cast

import torch
from torch import nn

from rl_core import plugins
from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm, PolicyLossAddOn, UpdateSchedule
from rl_core.algorithm.hyper import Schedules
from rl_core.config import Schedule, construct, decode, options_of
from rl_core.env import TaskVecEnv, VecEnv
from rl_core.errors import ConfigError
from rl_core.types import Json

ActorT = TypeVar("ActorT", bound=Actor)


def inner_class(name: str) -> type[AnyAlgorithm]:
    """Return the class of an algorithm by its registered name."""
    return cast("type[AnyAlgorithm]", plugins.load("algorithm", name))


def build_inner(
    name: str,
    options: Mapping[str, Json],
    actor: Actor,
    add_ons: Sequence[PolicyLossAddOn] = (),
) -> AnyAlgorithm:
    """Build an algorithm of which only the loss is used.

    Args:
        name: its registered name.
        options: its options.
        actor: what it learns.
        add_ons: terms of its policy loss.

    Raises:
        ConfigError: when an option is unknown, does not fit or says when it learns.
        PluginError: for an unknown name.
    """
    cls = inner_class(name)
    decoded = decode(options_of(cls), options, "algorithm.inner_options")
    refuse_unused(name, options, [field.name for field in fields(UpdateSchedule)])
    return construct(cls, {"actor": actor, "add_ons": add_ons}, decoded)


def refuse_unused(name: str, options: Mapping[str, Json], unused: Iterable[str]) -> None:
    """Refuse options of the inner algorithm that would have no effect, or not the usual one.

    Raises:
        ConfigError: for the first of them.
    """
    for option in unused:
        if option in options:
            raise ConfigError(
                f"algorithm.inner_options.{option}={options[option]} would not act as in '{name}' "
                "alone: the outer algorithm says from what, how and when it learns; leave it out, "
                "or give the outer one's own option"
            )


class SchedulesWithInner(Schedules):
    """The schedules of an algorithm and of its inner algorithm, which share the inner's tensors.

    Args:
        config: of the outer algorithm, whose names count where both have one.
        device: of the tensors.
        inner: the inner algorithm's schedules.
        unused: names of the inner algorithm's that have no effect; they are left out.

    Attributes:
        is_held: whether values stay as they are, until `release`.
    """

    def __init__(
        self, config: object, device: torch.device, inner: Schedules, unused: Iterable[str] = ()
    ) -> None:
        super().__init__(config, device)
        self.is_held = False
        self._inner = {name: inner for name in inner if name not in {*self, *unused}}
        for name in self._inner:
            self._given[name] = self._schedules[name] = inner[name]
            self.current.register_buffer(name, inner.current[name])

    def set_progress(self, progress: float) -> None:
        """Move every value to a point of the run; values that are held move at their release."""
        self._progress = progress
        if not self.is_held:
            for name, schedule in self.items():
                self.current[name].fill_(schedule.value(progress))

    def release(self) -> None:
        """Let values move again, first to where they would be."""
        self.is_held = False
        self.set_progress(self._progress)

    def change(self, name: str, value: float | Schedule) -> None:
        """Replace a schedule, see `Schedules`; a value that is held moves at its release."""
        before = self.current[name].clone() if name in self else None
        super().change(name, value)
        if self.is_held and before is not None:
            self.current[name].copy_(before)

    def _check(self, name: str, value: float | Schedule) -> None:
        if name in self._inner:
            self._inner[name]._check(name, value)
        else:
            super()._check(name, value)


def with_tasks(envs: VecEnv) -> TaskVecEnv:
    """Return the environments, which need tasks.

    Raises:
        ConfigError: when they have none.
    """
    if isinstance(envs, TaskVecEnv):
        return envs
    raise ConfigError(
        f"meta-learning needs many tasks, and {envs.spec_id} is one; take PointNavigation-v0, "
        "CartPolePhysics-v0, HalfCheetahVel-v0 or the like (rl list envs), or an environment of "
        "your own with sample_tasks and set_task, with vectorization='sync': docs/pages/tasks.md"
    )


def rows_per_task(envs: VecEnv, num_tasks: int, option: str) -> int:
    """Return how many rows each task of a rollout gets.

    Raises:
        ConfigError: when the tasks do not divide the environments.
    """
    if envs.num_envs % num_tasks:
        raise ConfigError(
            f"{option}={num_tasks} does not divide the {envs.num_envs} environments, of which each "
            "task gets the same number; change one of them"
        )
    return envs.num_envs // num_tasks


def on_cpu(generator: torch.Generator) -> torch.Generator:
    """Return a generator for the CPU that goes on with another one's numbers."""
    if generator.device.type == "cpu":
        return generator
    seed = torch.randint(2**31, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


def copy_actor(actor: ActorT) -> ActorT:
    """Return a copy of an actor that shares no memory with it, and of which nothing is frozen."""
    memo = {id(p): nn.Parameter(p.detach().clone()) for p in actor.parameters()}
    return copy.deepcopy(actor, memo)
