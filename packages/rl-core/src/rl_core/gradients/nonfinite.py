"""What becomes of gradient steps whose loss or gradient is not finite.

Such a step changes nothing; it is masked where it is computed, so that no step waits for a flag to
be read. Where groups move one after another, those before the loss that is not finite have moved.
Flags are read when an update ends, and when metrics are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from rl_core.compile.recorder import unrecorded
from rl_core.compile.trace import tensors_of
from rl_core.errors import NonFiniteError
from rl_core.gradients.loss import Noise
from rl_core.stateful import StateReader
from rl_core.types import StateDict

BatchT = TypeVar("BatchT")

OnNonFinite = Literal["stop", "skip"]
"""End the run at a step that is not finite, or leave the step out and go on."""

_MOST_KEPT, _MOST_BYTES = 64, 2**26
"""Bounds of the batches that are kept until the flag is read."""


@dataclass(frozen=True, slots=True)
class FaultyStep(Generic[BatchT]):
    """A step that was not finite, and what it was computed from.

    Attributes:
        number: of the gradient step, counted from 1.
        batch: the data.
        noise: what was drawn for the step.
    """

    number: int
    batch: BatchT
    noise: Noise


class NonFiniteGuard(Generic[BatchT]):
    """Counts steps that were not finite, and holds back those after one unless they are skipped.

    Args:
        device: where the parameters are.

    Attributes:
        faulty: the step that was refused last; None where there was none or its batch is not known.
    """

    def __init__(self, device: torch.device) -> None:
        self.faulty: FaultyStep[BatchT] | None = None
        self._count = torch.zeros((), device=device)
        self._steps_before = torch.zeros((), device=device)
        self._ends = torch.ones((), dtype=torch.bool, device=device)
        self._mode: OnNonFinite = "stop"
        self._kept: list[FaultyStep[BatchT] | None] = []
        self._room: int | None = None

    @property
    def mode(self) -> OnNonFinite:
        """What becomes of the steps after one that is not finite."""
        return self._mode

    @mode.setter
    def mode(self, mode: OnNonFinite) -> None:
        self._mode = mode
        self._ends.fill_(mode == "stop")
        self.forget_kept()

    @property
    def holds(self) -> Tensor:
        """Whether steps must not count, because one before was not finite; 0-dim bool."""
        return self._ends & (self._count > 0.0)

    def note(self, faulty: Tensor) -> None:
        """Note a step inside a graph.

        Args:
            faulty: 0-dim bool, whether it would have counted and was not finite.
        """
        self._count.add_(faulty)
        self._steps_before.add_(self._count == 0.0)

    def keep(self, number: int, batch: BatchT | None, noise: Noise) -> None:
        """Keep what a step was computed from until it is known to be finite.

        Args:
            number: of the step.
            batch: its data; None where they are elsewhere.
            noise: what was drawn for it.
        """
        if self._mode == "skip":
            return
        if self._room is None:  # steps of one run take batches of one size
            size = sum(tensor.nbytes for tensor in tensors_of(batch))
            self._room = max(1, min(_MOST_KEPT, _MOST_BYTES // max(1, size)))
        if len(self._kept) < self._room:
            self._kept.append(None if batch is None else FaultyStep(number, batch, noise))
        if len(self._kept) == self._room and not self.is_faulty:
            self.forget_kept()

    @property
    def is_faulty(self) -> bool:
        """Whether a step was not finite since the last reading."""
        return float(self._count) > 0.0

    def check(self) -> None:
        """Refuse steps that were not finite, unless they are skipped.

        Raises:
            NonFiniteError: when there was one; the next step counts again.
        """
        if self._mode == "skip":
            return
        if not self.is_faulty:
            self.forget_kept()
            return
        index = int(self._steps_before)
        faulty = self._kept[index] if index < len(self._kept) else None
        number = "a gradient step" if faulty is None else f"gradient step {faulty.number}"
        self._refuse(
            faulty,
            f"{number} had a loss or gradient that is not finite; it changed no parameter, and "
            "neither did later ones. Lower the learning rate, bound the gradient norm, or look "
            "for extreme rewards and observations",
        )

    def refuse(self, number: int, batch: BatchT, message: str) -> None:
        """Refuse a step that is not a gradient step, or count it where steps are skipped.

        Args:
            number: of the gradient step that would come next.
            batch: its data.
            message: what was not finite, and what became of it.

        Raises:
            NonFiniteError: unless steps are skipped.
        """
        if self._mode == "skip":
            self._count.add_(1.0)
            return
        self._refuse(FaultyStep(number, batch, {}), message)

    @property
    def num_skipped(self) -> float:
        """How many steps were skipped since the last reading."""
        return float(self._count) if self._mode == "skip" else 0.0

    def restore(self, num_skipped: float) -> None:
        """Go on counting skipped steps, if steps are skipped, from an earlier `num_skipped`."""
        if self._mode == "skip":
            self._count.fill_(num_skipped)

    def forget_kept(self) -> None:
        """Forget what was kept of steps that are known to be finite."""
        self._steps_before.zero_()
        self._kept.clear()

    def clear(self) -> None:
        """Forget all steps."""
        self._count.zero_()
        self.forget_kept()

    def _refuse(self, faulty: FaultyStep[BatchT] | None, message: str) -> None:
        self.faulty = faulty
        self.clear()
        raise NonFiniteError(
            f"{message}. on_nonfinite='skip' leaves such steps out instead of ending the run"
        )


_BETWEEN = "\n"
"""Stands between the names of a saved list, which hold no line breaks."""


class StepMetrics:
    """The metrics of gradient steps since the last reading, which are summed on the device.

    So no step waits for one to be read. Steps that return other names have sums of their own.

    Args:
        device: where the numbers are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[tuple[str, ...], Tensor] = {}  # one of each name, and how many steps

    def add(self, metrics: Mapping[str, Tensor], counts: Tensor) -> None:
        """Add one step's metrics where it counts.

        Args:
            metrics: 0-dim, by name.
            counts: 0-dim bool.
        """
        names = tuple(sorted(metrics))
        sums = self._room(names)
        row = [metrics[name].detach().to(torch.float32) for name in names]
        row.append(torch.ones_like(sums[0]))
        sums.add_(torch.where(counts, torch.stack(row), 0.0))

    def means(self) -> dict[str, float]:
        """Average each name over the steps that returned it; empty without any step."""
        totals: dict[str, float] = {}
        counts: dict[str, float] = {}
        rows = torch.cat(list(self._sums.values())).tolist() if self._sums else []
        for names in self._sums:
            *values, count = rows[: len(names) + 1]
            del rows[: len(names) + 1]
            for name, value in zip(names, values, strict=True):
                totals[name] = totals.get(name, 0.0) + value
                counts[name] = counts.get(name, 0.0) + count
        return {name: total / counts[name] for name, total in totals.items() if counts[name]}

    def clear(self) -> None:
        """Forget everything but the names."""
        for sums in self._sums.values():
            sums.zero_()

    def state_dict(self) -> list[StateDict]:
        """Return the sums of any steps, with their names."""
        return [
            {"names": _BETWEEN.join(names), "totals": sums}
            for names, sums in self._sums.items()
            if sums[-1] > 0.0
        ]

    def load(self, saved: Sequence[StateReader]) -> None:
        """Take over what `state_dict` returned.

        Raises:
            CheckpointError: when an entry is damaged.
        """
        self.clear()
        for entry in saved:
            names = tuple(entry.text("names").split(_BETWEEN))
            totals = entry.tensor("totals", like=torch.zeros(len(names) + 1))
            self._room(names).copy_(totals)

    def _room(self, names: tuple[str, ...]) -> Tensor:
        if names not in self._sums:
            with unrecorded():  # what outlives a step is not part of its graph
                self._sums[names] = torch.zeros(len(names) + 1, device=self._device)
        return self._sums[names]
