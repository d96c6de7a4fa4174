"""Index samplers: which rows of a replay buffer are drawn."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.errors import ConfigError
from rl_core.stateful import StateReader
from rl_core.types import StateDict

Slots: TypeAlias = npt.NDArray[np.int64]
"""Numbers of rows."""


class ReplayRows(Protocol):
    """What a sampler sees of a replay buffer.

    The buffer has ``num_slots`` rows, the *slots*, numbered from 0; environment ``slot % num_envs``
    wrote them. A slot may be drawn when it holds a transition, or the first transition of a
    sequence; its row is overwritten when it is the oldest of its environment.

    Attributes:
        num_slots: rows of all environments.
        num_envs: how many environments.
        learned: transitions learned from in what is drawn, at most: 1, or those of a sequence.
        reward: of every slot, float32, environment units; kept up to date by the buffer.
    """

    num_slots: int
    num_envs: int
    learned: int
    reward: npt.NDArray[np.float32]

    def cursor(self) -> Any:
        """Return a mark of what has been inserted so far."""
        ...

    def changes_since(self, cursor: Any) -> tuple[Slots, Slots]:
        """Return the slots that can no longer be drawn since a mark, and those that are new.

        Both in the order of time. Overwritten slots may be among both.
        """
        ...

    def drawable(self) -> Slots:
        """Return all slots that may be drawn, in ascending order."""
        ...

    def ends_episode(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Return whether the transitions in some slots are the last of their episodes."""
        ...


class IndexSampler(ABC):
    """Chooses slots of a replay buffer; any sampler goes with n-step, hindsight and sequences.

    A subclass writes `draw`. It is registered in the entry-point group ``rl_core.samplers`` and
    given to a buffer as ``storage.sampler``, by its name and the arguments of its constructor.

    Attributes:
        rows: what it draws from; set by `attach`.
        generator: draws every random number; on the CPU.
        needs_td_errors: whether `learn` wants ``info["td_error"]``.
    """

    needs_td_errors: ClassVar[bool] = False
    rows: ReplayRows
    generator: torch.Generator

    def attach(self, rows: ReplayRows, generator: torch.Generator) -> None:
        """Begin to draw from rows, which are empty."""
        self.rows = rows
        self.generator = generator
        self._cursor: Any = rows.cursor()

    @abstractmethod
    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield blocks `(K, N)` of slots that may be drawn, in all ``num_batches`` batches of N.

        A sampler whose draws depend on what the previous batch taught yields blocks of one.

        Raises:
            ConfigError: when nothing may be drawn; see `nothing_to_draw`.
        """

    def changes(self) -> tuple[Slots, Slots]:
        """Return the slots that can no longer be drawn since the last call, and the new ones."""
        gone, new = self.rows.changes_since(self._cursor)
        self._cursor = self.rows.cursor()
        return gone, new

    def weights(self, slots: Tensor) -> Tensor:
        """Return the importance weights of K batches of slots, `(K, N)`, float32; 1 by default."""
        return torch.ones(slots.shape)

    def learn(self, batch: ReplayBatch, info: Mapping[str, Tensor]) -> None:
        """Take in what a gradient step returned; nothing by default."""
        return

    def note_returns(self, returns: Sequence[float]) -> None:
        """Take in the returns of training episodes that ended; nothing by default."""
        return

    def reset(self) -> None:
        """Forget what belongs to rows: the buffer is empty, or about to be filled anew."""
        self._cursor = self.rows.cursor()

    def set_progress(self, progress: float) -> None:
        """Move schedules to a fraction of the run; nothing by default."""
        return

    def live_parameters(self) -> Mapping[str, float]:
        """Return the parameters that may change while running; none by default."""
        return {}

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set one of `live_parameters`."""
        raise ConfigError(f"{type(self).__name__} has no live parameter '{name}'")

    def metrics(self) -> Mapping[str, float]:
        """Return what is worth logging; the live parameters by default."""
        return self.live_parameters()

    def state_dict(self) -> StateDict:
        """Return what it knows beyond the rows; nothing by default."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`, after the rows took over theirs.

        By default all rows are new again: `changes` returns them at its next call.

        Raises:
            CheckpointError: when it is of another kind of sampler.
        """
        StateReader(state, "storage/sampler").expect(())
        self.reset()
        self._cursor = None


def nothing_to_draw() -> ConfigError:
    """Return the error of a buffer that holds no transition."""
    return ConfigError(
        "the replay buffer holds no transition yet; collect some before drawing from it "
        "(algorithm.update_after)"
    )
