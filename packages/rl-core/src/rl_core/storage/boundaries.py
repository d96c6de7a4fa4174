"""Whether what is inserted into a storage continues what it holds."""

import secrets

import torch
from torch import Tensor

from rl_core.errors import CheckpointError, DataError
from rl_core.stateful import StateReader
from rl_core.storage.spec import DataSlice, check_slice
from rl_core.types import StateDict

ORIGIN = "origin"
"""The column of a slice, and the prefix ``origin/`` of several, that tell where it comes from.

Only these differ between slices of two storages with the same contents.
"""

_OWN, _NOTHING = 0, -1


class EpisodeBoundaries:
    """Tells where an episode boundary lies between what is stored and what is inserted next.

    Observations are not compared: states recur, and another worker's episode may lead through the
    very state in which this one was left. A transition continues the transition inserted before
    it, and a slice the slice of the same storage that ended where it begins; anything else does
    not.

    A slice's column `ORIGIN` is int64 `(B, 2)`: which storage gave the rows of each environment,
    and the *place* of the first row in it. Places count the rows of a storage without end.

    Args:
        num_envs: B.

    Attributes:
        is_pending: a transition that is inserted next may not continue the newest row.
    """

    def __init__(self, num_envs: int) -> None:
        self._follows = torch.zeros((num_envs, 2), dtype=torch.int64)
        self._places = torch.zeros(num_envs, dtype=torch.int64)
        self.mark()

    def mark(self) -> None:
        """Mark a boundary: nothing continues what is stored."""
        self._storage = _new_number()
        self._expect_nothing()

    def forget(self, num_rows: Tensor | int) -> None:
        """Note that the storage was emptied; places continue to be counted.

        Args:
            num_rows: how many rows of each environment there were, shape `(B,)`.
        """
        if (self._follows[:, 0] > _OWN).any():
            self._storage = _new_number()  # what is inserted next does not continue a slice
        self._places = self._places + num_rows
        self._expect_nothing()

    def precede(self, num_rows: Tensor) -> None:
        """Note rows that are not steps before the first one since the storage was emptied.

        Args:
            num_rows: how many of each environment, shape `(B,)`.
        """
        self._places = self._places - num_rows

    def origin(self, rows: Tensor | int) -> Tensor:
        """Return the column `ORIGIN` of a slice.

        Args:
            rows: the first one of each environment, counted from what was there since the storage
                was emptied, shape `(B,)`.
        """
        places = self._places + rows
        return torch.stack([torch.full_like(places, self._storage), places], 1)

    def checked_origin(self, data: DataSlice) -> Tensor:
        """Return the column `ORIGIN` of a slice that was given, on the CPU.

        Raises:
            DataError: when it is missing, or not of this form.
        """
        shape = (len(self._follows), 2)
        check_slice(data, {ORIGIN: (shape, torch.int64)})
        origin = data[ORIGIN].cpu()
        if (origin[:, 0] <= _OWN).any():
            raise DataError(
                f"data slice column '{ORIGIN}': expected numbers of storages above 0, got "
                f"{origin[:, 0].tolist()}; give slices as get_data_slice returned them"
            )
        return origin

    def breaks(self) -> Tensor:
        """Return where the next transition continues nothing, `(B,)`, unless an episode begins."""
        return self._follows[:, 0] != _OWN

    def breaks_before(self, origin: Tensor) -> Tensor:
        """Return where a slice of some origin does not continue the newest row, `(B,)`."""
        return (self._follows != origin).any(1)

    def inserted(self) -> None:
        """Note that a transition was inserted."""
        self._follows.zero_()
        self.is_pending = False

    def appended(self, origin: Tensor, num_rows: Tensor) -> None:
        """Note that a slice was inserted.

        Args:
            origin: its column.
            num_rows: how many places it covered, shape `(B,)`; 0 where it held nothing of that
                environment.
        """
        if (self._follows[:, 0] == _NOTHING).any():
            self._storage = _new_number()  # or its rows would seem to continue what was forgotten
        after = origin + torch.stack([torch.zeros_like(num_rows), num_rows], 1)
        self._follows = torch.where(num_rows[:, None] > 0, after, self._follows)
        self.is_pending = bool(self.breaks().any())

    def state_dict(self) -> StateDict:
        """Return what continues the newest rows."""
        return {"follows": self._follows.clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        From now on the slices of this storage come from another one than before: several storages
        may continue one state.

        Raises:
            CheckpointError: when it does not fit.
        """
        saved = StateReader(state, "storage/boundaries")
        saved.expect(("follows",))
        follows = saved.tensor("follows", like=self._follows)
        if (follows[:, 0] < _NOTHING).any():
            raise CheckpointError("storage/boundaries: 'follows' names no storage")
        self.mark()
        self._places = torch.zeros_like(self._places)
        self._follows = follows.cpu().clone()
        self.is_pending = bool(self.breaks().any())

    def _expect_nothing(self) -> None:
        self._follows = torch.zeros_like(self._follows)
        self._follows[:, 0] = _NOTHING
        self.is_pending = True


def _new_number() -> int:
    """Draw a number that no other storage has, whatever it was seeded with."""
    return 1 + secrets.randbits(62)
