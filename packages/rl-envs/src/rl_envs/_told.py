"""What the environments of one step told, put together when somebody asks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from gymnasium.vector import VectorEnv

from rl_core.errors import EnvironmentFaultError, in_brief

Info: TypeAlias = dict[str, object]
"""What one environment told in one step."""

Last: TypeAlias = tuple[object, Info]
"""Last observation and last info of an episode."""


class ToldInfo(Mapping[str, object]):
    """The infos of a same-step vector environment, in Gymnasium's form.

    Each key holds an array of ``B`` values, beside a mask under ``_key`` that says which
    environments told it. Rows that ended tell what their reset told; their last step's is under
    ``final_info`` and ``final_obs``.

    Most infos are never read, so the arrays are made by the first look at one of them.

    Args:
        told: one info per environment.
        ended: of the rows that ended, by row.
    """

    __slots__ = ("_ended", "_merged", "_told")

    def __init__(self, told: Sequence[Info], ended: Mapping[int, Last]) -> None:
        self._told = told
        self._ended = ended
        self._merged: Info | None = None

    def __getitem__(self, key: str) -> object:
        return self._all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> Info:
        if self._merged is None:
            merger, merged = _Merger(len(self._told)), Info()
            for index, info in enumerate(self._told):
                if index in self._ended:
                    observation, last = self._ended[index]
                    final: Info = {"final_obs": observation, "final_info": last}
                    merged = merger.add(merged, final, index)
                merged = merger.add(merged, info, index)
            self._merged, self._told, self._ended = merged, (), {}
        return self._merged


class _Merger(VectorEnv):
    """Lends Gymnasium's own way of joining infos, which is for vector environments only."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs

    def add(self, merged: Info, info: Info, index: int) -> Info:
        try:
            return self._add_info(merged, info, index)
        except Exception as error:
            raise EnvironmentFaultError(
                f"environment {index}: its info with {list(info)} does not go together with that "
                f"of the other environments: {in_brief(error)}"
            ) from error
