"""The one protocol by which every part of a run is saved and restored."""

from typing import Protocol, runtime_checkable

from rl_core.types import StateDict


@runtime_checkable
class Stateful(Protocol):
    """A part whose whole state is a tree of tensors, numbers and strings.

    ``load_state_dict(state_dict())`` on a freshly built part must make it indistinguishable from
    the one that was saved, its random generators included. Nothing in the tree may need pickle.
    """

    def state_dict(self) -> StateDict:
        """Return the state as a new tree; its tensors may share memory with the part."""
        ...

    def load_state_dict(self, state: StateDict) -> None:
        """Take over a state returned by `state_dict`, copying its tensors.

        Raises:
            CheckpointError: when the state does not fit this part.
        """
        ...
