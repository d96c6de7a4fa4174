"""What replayed rows come to with goals that were achieved, one row after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_core.env import GoalFunctions
from rl_testing._rows import Row

_ACHIEVED = "observation/achieved_goal"
DESIRED_GOAL = "observation/desired_goal"
"""Where the goal of a sample stands."""

Strategy = Literal["final", "future", "episode", "random"]


def scripted_reward(achieved: Any, desired: Any, info: Mapping[str, object]) -> object:
    """Tell by a reward from which two goals it was computed."""
    assert achieved.shape == desired.shape
    return achieved[..., 0] * np.float32(0.25) - 1000.0 * desired[..., 0]


def scripted_end(achieved: Any, desired: Any, info: Mapping[str, object]) -> object:
    """End an episode where its goal is reached, and now and then elsewhere."""
    return (achieved == desired)[..., 0] | ((achieved + desired)[..., 0] % 11 == 0)


WITH_ENDS = GoalFunctions(scripted_reward, scripted_end)
WITHOUT_ENDS = GoalFunctions(scripted_reward)


@dataclass(frozen=True, slots=True)
class ReferenceGoals:
    """Knows again what a storage relabelled of a script with ``observation="goals"``.

    Attributes:
        strategy: which achieved goals may be desired instead.
        functions: how they are rewarded, and whether episodes end by them.
    """

    strategy: Strategy
    functions: GoalFunctions

    def new_goal(self, desired: Tensor) -> float | None:
        """Return the goal a sample has instead of its own, which is below 0."""
        goal = float(desired)
        return goal if goal >= 0.0 else None

    def check_allowed(
        self, goal: float, known: Sequence[tuple[int, list[Row], int]], place: int, oldest: int
    ) -> None:
        """Assert that a goal is one of those that the strategy allows.

        Args:
            goal: what a sample has.
            known: ``places()`` of the oracle.
            place: which of these was drawn, alone or as the first one of a sequence.
            oldest: rows inserted before this one are stored no longer.
        """
        _, episode, start = known[place]
        if self.strategy == "random":
            rows = [episode[start] for _, episode, start in known]
        else:
            first, end = {
                "final": (len(episode) - 1, len(episode)),
                "future": (start, len(episode)),
                "episode": (0, len(episode)),
            }[self.strategy]
            rows = episode[first:end]
        among = [_achieved(row) for row in rows if row.step >= oldest]
        assert goal in among, f"goal {goal} is not one of {among} ({self.strategy})"

    def in_hindsight(self, rows: list[Row], goal: float) -> list[Row]:
        """Return what rows would have been, had they pursued a goal."""
        return [self._row(row, torch.tensor([goal])) for row in rows]

    def _row(self, row: Row, goal: Tensor) -> Row:
        achieved, desired = np.array([_achieved(row)], np.float32), goal.numpy()
        columns = {**row.columns, DESIRED_GOAL: goal}
        columns["reward"] = torch.tensor(self._asked(self.functions.rewards, achieved, desired))
        if self.functions.compute_terminated is not None:
            ends = self._asked(self.functions.terminations, achieved, desired)
            own = row.columns[DESIRED_GOAL].numpy()
            failed = row.columns["terminated"].item() and not self._asked(
                self.functions.terminations, achieved, own
            )
            columns["terminated"] = torch.tensor(bool(ends or failed))
        return replace(row, columns=columns, successor={**row.successor, DESIRED_GOAL: goal})

    def _asked(self, function: Any, achieved: Any, desired: Any) -> Any:
        return function(achieved[None], desired[None])[0]


def _achieved(row: Row) -> float:
    return float(row.successor[_ACHIEVED])
