"""The order of an update, which all algorithms share.

It prepares the rollout, learns from each batch, hands what gradient steps return to the storage
(which sets priorities), and updates running statistics of observations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from torch import Tensor

from rl_core.batch import Rollout
from rl_core.config import Config, Count, Needs, NonNegativeInt
from rl_core.errors import DataError
from rl_core.storage import AnyStorage, HasRollouts, Storage

if TYPE_CHECKING:
    from rl_core.algorithm.algorithm import Algorithm, AnyAlgorithm


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSchedule(Config):
    """How data collection and gradient steps take turns.

    Attributes:
        start_steps: environment transitions collected with uniformly random actions first.
        update_after: no update before this many environment transitions, random ones included.
        update_every: environment transitions between updates, rounded up to whole steps of all
            environments. Rows that only reset are none, and transitions beyond those that an
            update needs count toward the next one. None takes the storage's rollout.
        num_epochs: passes over the data in an update.
        num_minibatches: minibatches per epoch.
        minibatch_size: samples per minibatch; on-policy, only one of the two is given.
        keep_ratio: take more minibatches where environments that step together bring more than
            ``update_every`` transitions at a time.
        min_samples: how many the smallest minibatch of a rollout must have, where one teaches
            nothing.

    Raises:
        ConfigError: for a negative or zero count.
    """

    start_steps: NonNegativeInt = 0
    update_after: NonNegativeInt = 0
    update_every: Count | None = None
    num_epochs: Count = 1
    num_minibatches: Count | None = None
    minibatch_size: Count | None = None
    keep_ratio: Annotated[bool, Needs("update_every"), Needs("num_minibatches")] = False
    min_samples: Count = 1

    @classmethod
    def of(cls, config: object, **others: int | None) -> "UpdateSchedule":
        """Take what a config says of it under the same names.

        Args:
            config: a dataclass.
            others: what it does not say, or says otherwise.

        Raises:
            ConfigError: for a negative or zero count.
        """
        names = [each.name for each in fields(cls)]
        said = {name: getattr(config, name) for name in names if hasattr(config, name)}
        return cls(**{**said, **others})

    def rows_per_update(self, num_envs: int) -> int | None:
        """Return ``update_every`` in whole steps of all environments; None where it is not given.

        An update is due after so many transitions, more rows where some of them only reset.

        Args:
            num_envs: environments that step together.
        """
        if self.update_every is None:
            return None
        return -(-self.update_every // num_envs) * num_envs

    def batches_per_epoch(self, num_envs: int, gradient_steps: int = 0) -> int | None:
        """Return how many minibatches an epoch has; None where their size says so.

        With ``keep_ratio`` these are r = ``num_minibatches * rows / update_every``, which need not
        be a whole number. Fractions are carried over: u updates have floor(r u) in all.

        Args:
            num_envs: environments that step together.
            gradient_steps: taken so far, from which u is known.
        """
        if not self.keep_ratio:
            return self.num_minibatches
        rows = self.rows_per_update(num_envs)
        assert rows is not None
        assert self.update_every is not None
        assert self.num_minibatches is not None
        owed, per = self.num_minibatches * rows, self.update_every  # r = owed / per, at least 1
        taken = gradient_steps // self.num_epochs
        updates = -(-taken * per // owed)
        return owed * (updates + 1) // per - taken


BatchT = TypeVar("BatchT")


UpdateCallback: TypeAlias = Callable[[int], bool | None]
"""Called with a count from 0; True ends the loop that it is called in."""


@dataclass(frozen=True, slots=True)
class UpdateCallbacks:
    """Callbacks before and after the epochs and minibatches of an update.

    Attributes:
        epoch_start: before each pass; True ends the passes.
        epoch_end: after each pass; True ends the passes.
        minibatch_start: before each gradient step; True ends the pass.
        minibatch_end: after each gradient step; True ends the pass.
    """

    epoch_start: Sequence[UpdateCallback] = ()
    epoch_end: Sequence[UpdateCallback] = ()
    minibatch_start: Sequence[UpdateCallback] = ()
    minibatch_end: Sequence[UpdateCallback] = ()


def _ends(callbacks: Sequence[UpdateCallback], count: int) -> bool:
    """Call all, and tell whether one ends the loop."""
    ends = [callback(count) for callback in callbacks]  # every one is called
    return any(ends)


def whole_batch(storage: Storage[BatchT]) -> BatchT:
    """Take everything that a rollout storage holds as one batch, in a random order."""
    (batch,) = storage.generate_batches(1, None)
    return batch


def run_update(algorithm: "AnyAlgorithm", storage: AnyStorage) -> dict[str, float]:
    """Update an algorithm from a storage: the order of steps that almost all algorithms share.

    Args:
        algorithm: what learns.
        storage: what it learns from.

    Returns:
        The metrics of preparing a rollout, and of what an algorithm does once per update.

    Raises:
        NonFiniteError: when a step was not finite and such steps are not skipped.
    """
    schedule = algorithm.schedule
    step = algorithm.gradients
    num_batches = schedule.batches_per_epoch(storage.num_envs, step.count)
    prepared: Mapping[str, Tensor] = {}
    rollouts = storage if isinstance(storage, HasRollouts) else None
    rollout = None if rollouts is None else rollouts.rollout()
    is_first = step.count == 0
    if is_first:  # nothing is learned from observations that were never normalized
        _refresh_normalization(algorithm, storage, rollout)
    if rollouts is not None and rollout is not None:
        added = algorithm.add_ons.prepare(rollout, algorithm.generator)
        columns, metrics = algorithm.prepare(added.rollout)
        rollouts.attach({**added.columns, **columns})
        prepared = {**added.metrics, **metrics}
    storage.before_gradients()
    step.begin_update()
    before = algorithm.before_epochs(storage)
    run_epochs(
        algorithm,
        lambda: storage.generate_batches(num_batches, schedule.minibatch_size),
        partial(_learn, algorithm, storage),
    )
    step.guard.check()  # before anything else changes what is saved as the last good state
    after = algorithm.after_epochs(storage)
    if not is_first:
        _refresh_normalization(algorithm, storage, rollout)
    storage.after_update()
    return {name: float(value) for name, value in {**prepared, **before, **after}.items()}


def run_epochs(
    algorithm: "Algorithm[Any, BatchT]",
    batches: Callable[[], Iterable[BatchT]],
    learn: Callable[[BatchT], object],
) -> None:
    """Pass over batches as often as an algorithm's schedule says, and call its `UpdateCallbacks`.

    Args:
        algorithm: what learns.
        batches: returns the batches of one pass.
        learn: takes the gradient step of a batch.
    """
    callbacks, step = algorithm.callbacks, algorithm.gradients
    starts, finishes = callbacks.minibatch_start, callbacks.minibatch_end
    for epoch in range(algorithm.schedule.num_epochs):
        if epoch > 0 and step.stopped:
            break
        if callbacks.epoch_start and _ends(callbacks.epoch_start, epoch):
            break
        for index, batch in enumerate(batches()):
            if starts and _ends(starts, index):
                break
            learn(batch)
            if finishes and _ends(finishes, index):
                break
        if callbacks.epoch_end and _ends(callbacks.epoch_end, epoch):
            break


def _refresh_normalization(
    algorithm: "AnyAlgorithm", storage: AnyStorage, rollout: Rollout | None
) -> None:
    """Take what was collected into the actor's running statistics, where it learns and has any."""
    if not (algorithm.actor.normalizes_observations and algorithm.gradients.learns):
        return
    observation, counts = (
        storage.new_observations() if rollout is None else (rollout.observation, rollout.valid)
    )
    algorithm.actor.update_normalization(observation, counts)


def _learn(algorithm: "AnyAlgorithm", storage: AnyStorage, batch: object) -> None:
    """Take a gradient step, and let the storage set new priorities unless it was not finite."""
    samples = algorithm.gradient_step(batch)
    try:
        storage.after_gradients(batch, samples)
    except DataError:
        is_finite = all(value.isfinite().all() for value in samples.values())
        if is_finite or not algorithm.gradients.guard.is_faulty:
            raise
