"""Gradient steps that were not finite, saved for inspection and repetition."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from rl_core.config import Recipe
from rl_core.errors import CheckpointError
from rl_core.gradients import FaultyStep
from rl_core.stateful import StateReader
from rl_core.types import Json, StateDict, StateValue
from rl_train.checkpoint import load_checkpoint, save_checkpoint

BatchT = TypeVar("BatchT")


def save_faulty_step(
    target: Path, step: FaultyStep[BatchT], total_steps: int, message: str, recipe: Recipe
) -> None:
    """Write the batch and the noise of a step, in the format of checkpoints.

    The manifest records the error, the type of the batch, and which of its tensors are not finite.

    Args:
        target: the new directory.
        step: the gradient step.
        total_steps: environment steps of the run so far.
        message: text of the error.
        recipe: recipe of the run.

    Raises:
        CheckpointError: when it cannot be written.
    """
    batch = asdict(step.batch)  # type: ignore[call-overload]  # batches are dataclasses
    state: StateDict = {"batch": batch, "noise": dict(step.noise)}
    metadata: dict[str, Json] = {
        "message": message,
        "gradient_step": step.number,
        "batch": type(step.batch).__name__,
        "not_finite": list(_not_finite(state, "")),
    }
    save_checkpoint(
        target.parent, total_steps, state, recipe=recipe, metadata=metadata, name=target.name
    )


def load_faulty_step(path: str | Path, batch_type: type[BatchT]) -> FaultyStep[BatchT]:
    """Read what `save_faulty_step` wrote.

    Args:
        path: the directory, such as ``runs/mine/nonfinite/step-4096``.
        batch_type: type of the algorithm's batches.

    Raises:
        CheckpointError: when it is damaged, or has another type of batch.
    """
    saved = load_checkpoint(Path(path))
    state = StateReader(saved.state, "faulty step")
    kind = saved.metadata.get("batch")
    if kind != batch_type.__name__:
        raise CheckpointError(f"{path} holds a {kind}; expected a {batch_type.__name__}")
    number = saved.metadata.get("gradient_step")
    assert isinstance(number, int)
    batch = state.reader("batch").as_dataclass(batch_type)
    return FaultyStep(number, batch, state.tensors("noise"))


def _not_finite(state: StateValue, path: str) -> Iterator[str]:
    if isinstance(state, Tensor) and not bool(state.isfinite().all()):
        yield path
    elif isinstance(state, Mapping):
        for name, value in state.items():
            yield from _not_finite(value, f"{path}/{name}" if path else name)
