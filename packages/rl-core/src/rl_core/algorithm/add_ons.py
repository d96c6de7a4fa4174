"""Extra terms in the policy loss of any algorithm that has one."""

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from rl_core.actor import Actor
from rl_core.batch import ReplayBatch, Rollout, RolloutBatch
from rl_core.errors import ConfigError
from rl_core.nn.distributions import Distribution
from rl_core.stateful import StateReader
from rl_core.types import Observation, StateDict


@dataclass(frozen=True, slots=True)
class PreparedRollout:
    """What an add-on makes of a rollout before the algorithm estimates advantages.

    Attributes:
        rollout: what is learned from, such as one with other rewards.
        columns: what batches carry in their extras for the add-on, each `(T, B, ...)`.
        metrics: 0-dim, by path.
    """

    rollout: Rollout
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


class PolicyLossAddOn(nn.Module, ABC):
    """A term added to the policy loss.

    As a module it may own parameters; they are learned with the group that names ``add_ons``
    and saved in its checkpoints. One that is registered as a plug-in can be named in recipes.

    Attributes:
        batch_types: the batches it can read; an algorithm that learns from others refuses it.
        is_taken: whether an algorithm has set it up; no other one takes it then.
        is_internal: whether an algorithm made it for itself; recipes do not name it then.
    """

    batch_types: ClassVar[tuple[type, ...]] = (RolloutBatch, ReplayBatch)
    is_taken: bool = False
    is_internal: bool = False

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Get ready, once, before training; the default does nothing.

        Args:
            actor: the one being trained.
            device: where batches will be.
        """

    def prepare(self, rollout: Rollout, generator: torch.Generator) -> PreparedRollout:
        """Look at a fresh rollout, once, before it is learned from; the default leaves it as it is.

        Args:
            rollout: `(T, B, ...)`.
            generator: the algorithm's, for random numbers.
        """
        return PreparedRollout(rollout)

    @abstractmethod
    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the term to add, and metrics.

        Args:
            batch: the minibatch.
            distribution: the current policy's, at the batch's observations.
            info: what the loss has computed so far, each 0-dim.

        Returns:
            A 0-dim term, and 0-dim metrics by path.
        """

    @property
    def warm_up_steps(self) -> int:
        """Environment transitions with random actions that it wants to see before training."""
        return 0

    def observe(self, observation: Observation) -> None:
        """Look at observations `(N, ...)` of the warm-up; the default does nothing."""

    @property
    def uses_objects(self) -> bool:
        """Whether it was given objects that no recipe can name."""
        return False

    @property
    def loaded_actors(self) -> Mapping[str, Actor]:
        """Actors that it read from other runs, by directory; none by default.

        The recipe records them, so that a run is loaded without those runs. The constructor of an
        add-on that has some takes a `load_actor` (an `ActorLoader`) to read them with.
        """
        return {}

    def more_state(self) -> StateDict:
        """Return what it keeps beyond parameters and buffers; nothing by default."""
        return {}

    def load_more_state(self, state: StateDict) -> None:
        """Take over what `more_state` returned."""


class AddOns(nn.ModuleList):
    """The add-ons of one algorithm, in their order.

    Args:
        add_ons: one, or several.
        batch_type: what the algorithm learns from.
        actor: the one being trained.

    Raises:
        ConfigError: when one is not an add-on, reads other batches, belongs to another algorithm,
            or is there twice.
    """

    def __init__(
        self,
        add_ons: PolicyLossAddOn | Sequence[PolicyLossAddOn],
        batch_type: type,
        actor: Actor,
    ) -> None:
        listed = list(add_ons) if isinstance(add_ons, Sequence) else [add_ons]
        for add_on in listed:
            _check(add_on, batch_type)
            if add_on.is_taken:
                raise ConfigError(
                    f"add_ons: this {type(add_on).__name__} belongs to an algorithm already, which "
                    "would no longer learn it; make a new one"
                )
            if sum(other is add_on for other in listed) > 1:
                raise ConfigError(
                    f"add_ons: one {type(add_on).__name__} is there twice; make a new one for each"
                )
        super().__init__(listed)
        for add_on in listed:
            add_on.setup(actor, actor.device)
        self._learn = [any(p.requires_grad for p in a.parameters()) for a in listed]

    def take(self) -> None:
        """Keep other algorithms from taking them, once this one is built."""
        for add_on in self._listed():
            add_on.is_taken = True

    @property
    def learn(self) -> bool:
        """Whether any has parameters to learn."""
        return any(self._learn)

    @property
    def uses_objects(self) -> bool:
        """Whether one was given objects that no recipe can name."""
        return any(add_on.uses_objects for add_on in self._listed())

    @property
    def loaded_actors(self) -> Mapping[str, Actor]:
        """Actors that they read from other runs, by directory."""
        return {k: v for add_on in self._listed() for k, v in add_on.loaded_actors.items()}

    @property
    def warm_up_steps(self) -> int:
        """Environment transitions with random actions that one wants to see before training."""
        return max((add_on.warm_up_steps for add_on in self._listed()), default=0)

    def observe(self, observation: Observation) -> None:
        """Look at observations `(N, ...)` of the warm-up."""
        for add_on in self._listed():
            add_on.observe(observation)

    def prepare(self, rollout: Rollout, generator: torch.Generator) -> PreparedRollout:
        """Look at a fresh rollout, each add-on at what the one before it made of it.

        Raises:
            ConfigError: when two give batches different columns of the same name.
        """
        prepared = PreparedRollout(rollout)
        for add_on in self._listed():
            own = add_on.prepare(prepared.rollout, generator)
            for name, column in own.columns.items():
                if prepared.columns.get(name, column) is not column:
                    raise ConfigError(
                        f"add_ons: two of them give batches a column '{name}', and "
                        f"{type(add_on).__name__} would read the wrong one; give it once"
                    )
            prepared = PreparedRollout(
                own.rollout,
                {**prepared.columns, **own.columns},
                {**prepared.metrics, **own.metrics},
            )
        return prepared

    def terms(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
        *,
        learned: bool | None = None,
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the terms of the policy loss, each 0-dim, and their metrics.

        Args:
            batch: the minibatch.
            distribution: the policy's, at the batch's observations.
            info: what the loss has computed so far, each 0-dim.
            learned: only add-ons that have parameters to learn, or only those that have none; None
                takes all.
        """
        terms: list[Tensor] = []
        metrics: dict[str, Tensor] = {}
        for add_on, learns in zip(self._listed(), self._learn, strict=True):
            if learned not in (None, learns):
                continue
            term, more = add_on.compute_loss_term(batch, distribution, info)
            terms.append(term)
            for name, metric in more.items():
                metrics[_unused(name, metrics)] = metric
        return terms, metrics

    def more_state(self) -> StateDict:
        """Return what each keeps beyond parameters and buffers."""
        return {str(index): add_on.more_state() for index, add_on in enumerate(self._listed())}

    def load_more_state(self, saved: StateReader) -> None:
        """Take over what `more_state` returned."""
        for index, add_on in enumerate(self._listed()):
            add_on.load_more_state(saved.tree(str(index)))

    def _listed(self) -> list[PolicyLossAddOn]:
        return cast("list[PolicyLossAddOn]", list(self))


def _unused(name: str, known: Container[str]) -> str:
    """Number a name from the second of its kind on."""
    names = (f"{name}_{number}" for number in count(2))
    return next(each for each in chain([name], names) if each not in known)


def _check(add_on: object, batch_type: type) -> None:
    if not isinstance(add_on, PolicyLossAddOn):
        raise ConfigError(f"add_ons: expected PolicyLossAddOn objects, got {type(add_on).__name__}")
    if batch_type not in add_on.batch_types:
        known = " or ".join(known.__name__ for known in add_on.batch_types)
        raise ConfigError(
            f"add_ons: {type(add_on).__name__} reads {known}, but the algorithm learns from "
            f"{batch_type.__name__}; leave it out"
        )
