"""The order of steps in an update that almost all algorithms share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from rl_core.algorithm.watch import ends
from rl_core.batch import Rollout, RolloutBatch
from rl_core.errors import DataError
from rl_core.storage import AnyStorage, Storage

if TYPE_CHECKING:
    from rl_core.algorithm.contract import AnyAlgorithm

BatchT = TypeVar("BatchT")


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
    num_batches = schedule.batches_per_epoch(storage.num_envs)
    step = algorithm.gradients
    prepared: Mapping[str, Tensor] = {}
    rollout = storage.rollout() if algorithm.batch_type is RolloutBatch else None
    is_first = step.count == 0
    if is_first:  # nothing is learned from observations that were never normalised
        _refresh_normalization(algorithm, storage, rollout)
    if rollout is not None:
        added = algorithm.prepare_add_ons(rollout)
        columns, metrics = algorithm.prepare(added.rollout)
        storage.attach({**added.columns, **columns})
        prepared = {**added.metrics, **metrics}
    storage.before_gradients()
    step.begin_phase()
    before = algorithm.before_epochs(storage)
    watch = algorithm.watch
    starts, finishes = watch.minibatch_start, watch.minibatch_end
    for epoch in range(schedule.num_epochs):
        if epoch > 0 and step.stopped:
            break
        if watch.epoch_start and ends(watch.epoch_start, epoch):
            break
        batches = storage.generate_batches(num_batches, schedule.mini_batch_size)
        for index, batch in enumerate(batches):
            if starts and ends(starts, index):
                break
            _learn(algorithm, storage, batch)
            if finishes and ends(finishes, index):
                break
        if watch.epoch_end and ends(watch.epoch_end, epoch):
            break
    step.guard.check()  # before anything else changes what is saved as the last good state
    after = algorithm.after_epochs(storage)
    if not is_first:
        _refresh_normalization(algorithm, storage, rollout)
    storage.after_update()
    return {name: float(value) for name, value in {**prepared, **before, **after}.items()}


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
    """Take a gradient step, and let the storage learn from it unless it was not finite."""
    samples = algorithm.gradient_step(batch)
    try:
        storage.after_gradients(batch, samples)
    except DataError:
        if not algorithm.gradients.guard.is_faulty:
            raise
