"""Whether what comes into a storage goes on from what it holds."""

import secrets

import torch
from torch import Tensor

from rl_core.errors import CheckpointError, DataError
from rl_core.stateful import StateReader
from rl_core.storage.contract import DataSlice, check_slice
from rl_core.types import StateDict

ORIGIN = "origin"
"""The column of a slice, and the prefix ``origin/`` of several, that tell where it is from.

They alone differ between slices of two storages that hold the same.
"""

_OWN, _NOTHING = 0, -1


class Continuity:
    """Tells where steps go on from those before them, by what is known of them.

    Observations are not compared: states recur, and another worker's episode may lead through the
    very state that one's own was left in. What goes on are transitions that are inserted one after
    the other, and slices that one storage gave, the second from where the first one ended.

    A slice's column `ORIGIN` is int64 `(B, 2)`: which storage gave the rows of each environment,
    and the *place* of the first one in it. Places count rows as its storage counts them, without
    end.

    Args:
        num_envs: B.

    Attributes:
        has_seam: a transition that is inserted next may not go on.
    """

    def __init__(self, num_envs: int) -> None:
        self._follows = torch.zeros((num_envs, 2), dtype=torch.int64)
        self._places = torch.zeros(num_envs, dtype=torch.int64)
        self.cut()

    def cut(self) -> None:
        """Note that nothing goes on from what is stored."""
        self._storage = _new_number()
        self._expect_nothing()

    def forget(self, num_rows: Tensor | int) -> None:
        """Note that the storage was emptied; the places of what comes go on.

        Args:
            num_rows: how many rows of each environment there were, shape `(B,)`.
        """
        if (self._follows[:, 0] > _OWN).any():
            self._storage = _new_number()  # what is inserted next does not go on from a slice
        self._places = self._places + num_rows
        self._expect_nothing()

    def precede(self, num_rows: Tensor) -> None:
        """Note that rows which are no steps come before the first one since it was emptied.

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
        """Return where the next transition does not go on, `(B,)`, unless an episode begins."""
        return self._follows[:, 0] != _OWN

    def breaks_before(self, origin: Tensor) -> Tensor:
        """Return where a slice of some origin does not go on, `(B,)`."""
        return (self._follows != origin).any(1)

    def inserted(self) -> None:
        """Note that a transition came in."""
        self._follows.zero_()
        self.has_seam = False

    def appended(self, origin: Tensor, num_rows: Tensor) -> None:
        """Note that a slice came in.

        Args:
            origin: its column.
            num_rows: by how many its places went on, shape `(B,)`; where none, it held nothing of
                that environment.
        """
        if (self._follows[:, 0] == _NOTHING).any():
            self._storage = _new_number()  # or its rows would seem to go on from what was forgotten
        after = origin + torch.stack([torch.zeros_like(num_rows), num_rows], 1)
        self._follows = torch.where(num_rows[:, None] > 0, after, self._follows)
        self.has_seam = bool(self.breaks().any())

    def state_dict(self) -> StateDict:
        """Return what goes on from the newest rows."""
        return {"follows": self._follows.clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`.

        The storage is another one from now on for those that it gives slices to: there may be
        several that go on from one state.

        Raises:
            CheckpointError: when it does not fit.
        """
        saved = StateReader(state, "storage/continuity")
        saved.expect(("follows",))
        follows = saved.tensor("follows", like=self._follows)
        if (follows[:, 0] < _NOTHING).any():
            raise CheckpointError("storage/continuity: 'follows' names no storage")
        self.cut()
        self._places = torch.zeros_like(self._places)
        self._follows = follows.cpu().clone()
        self.has_seam = bool(self.breaks().any())

    def _expect_nothing(self) -> None:
        self._follows = torch.zeros_like(self._follows)
        self._follows[:, 0] = _NOTHING
        self.has_seam = True


def _new_number() -> int:
    """Draw a number that no other storage has, whatever it was seeded with."""
    return 1 + secrets.randbits(62)
