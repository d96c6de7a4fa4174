"""The infos of one step, joined only as far as somebody reads them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias, cast

import numpy as np
from gymnasium.vector import VectorEnv

from rl_envs.vector._arrays import Info

Last: TypeAlias = tuple[object, Info]
"""Last observation and last info of an episode."""

_LAST_KEYS = ("final_obs", "final_info")
"""Gymnasium's names for the parts of `Last`."""


class LazyInfo(Mapping[str, object]):
    """The infos of one step in Gymnasium's form for vectors; a key is joined when it is read.

    Each key holds an array of ``B`` values, beside a mask under ``_key`` that says which
    environments reported it. Values that fit no common array are in one of objects, and dicts are
    joined to a mapping like this one. Rows that ended hold the info of their reset; the info and
    the observation of their last step are under ``final_info`` and ``final_obs``.

    Args:
        infos: one per environment.
        ended: last observation and info of the rows that ended, by row.
    """

    __slots__ = ("_ended", "_infos", "_joined")

    def __init__(self, infos: Sequence[Info], ended: Mapping[int, Last]) -> None:
        self._infos = infos
        self._ended = ended
        self._joined = Info()

    def parts(self) -> tuple[Sequence[Info], Mapping[int, Last]]:
        """Return the infos and the ends it was made of."""
        return self._infos, self._ended

    def __getitem__(self, key: str) -> object:
        if key not in self._joined:
            self._joined[key] = self._join(key)
        return self._joined[key]

    def __iter__(self) -> Iterator[str]:
        keys: dict[str, None] = {}  # in order, without duplicates
        for index, info in enumerate(self._infos):
            for key in (*_LAST_KEYS, *info) if index in self._ended else info:
                keys[key] = keys[f"_{key}"] = None
        return iter(keys)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __repr__(self) -> str:
        return repr(dict(self))

    def _join(self, key: str) -> object:
        num_envs = len(self._infos)
        if values := self._values(key):
            return _join_values(key, values, num_envs)
        reported = self._values(key[1:]) if str(key).startswith("_") else {}
        if not reported:
            raise KeyError(key)
        return np.isin(np.arange(num_envs), list(reported))

    def _values(self, key: str) -> dict[int, object]:
        """Return what was reported under a key, by row."""
        values = {index: info[key] for index, info in enumerate(self._infos) if key in info}
        if key in _LAST_KEYS:
            place = _LAST_KEYS.index(key)
            values = {index: last[place] for index, last in self._ended.items()} | values
        return values


def _join_values(key: str, values: Mapping[int, object], num_envs: int) -> object:
    """Join one value for each of some rows, in Gymnasium's way where that is possible."""
    are_dicts = [isinstance(value, dict) for value in values.values()]
    if key != "final_obs" and all(are_dicts):
        return LazyInfo([cast("Info", values.get(row, {})) for row in range(num_envs)], {})
    if key != "final_obs" and not any(are_dicts):
        vector, joined = VectorEnv(), Info()  # which has Gymnasium's own way
        vector.num_envs = num_envs
        with suppress(Exception):  # of whatever kinds of values
            for row, value in values.items():
                joined = vector._add_info(joined, {key: value}, row)
            return joined[key]
    objects = np.full(num_envs, None, dtype=object)
    for row, value in values.items():
        objects[row] = value
    return objects
