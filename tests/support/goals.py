"""What replayed rows come to with goals that were achieved, one row after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_core.env import GoalFunctions
from rl_testing._rows import Row
from rl_testing.replay.checks import Place

_ACHIEVED = "observation/achieved_goal"
_DESIRED = "observation/desired_goal"

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
    """Tells what a storage relabeled of a script with ``observation="goals"``; a `Relabeling`.

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

    def episode(
        self, desired: Tensor, places: Sequence[Place], place: int, oldest: int
    ) -> list[Row]:
        """Return a sample's episode as it would have been with the goal that the sample has."""
        _, episode, start = places[place]
        goal = self.new_goal(desired)
        if goal is None:
            return episode
        if self.strategy == "random":
            rows = [episode[start] for _, episode, start in places]
        else:
            first, end = {
                "final": (len(episode) - 1, len(episode)),
                "future": (start, len(episode)),
                "episode": (0, len(episode)),
            }[self.strategy]
            rows = episode[first:end]
        among = [_achieved(row) for row in rows if row.step >= oldest]
        assert goal in among, f"goal {goal} is not one of {among} ({self.strategy})"
        return [self._pursuing(row, torch.tensor([goal])) for row in episode]

    def _pursuing(self, row: Row, goal: Tensor) -> Row:
        achieved, desired = np.array([_achieved(row)], np.float32), goal.numpy()
        columns = {**row.columns, _DESIRED: goal, f"successor/{_DESIRED}": goal}
        columns["reward"] = torch.tensor(self._asked(self.functions.rewards, achieved, desired))
        if self.functions.compute_terminated is not None:
            ends = self._asked(self.functions.terminations, achieved, desired)
            own = row.columns[_DESIRED].numpy()
            failed = row.columns["terminated"].item() and not self._asked(
                self.functions.terminations, achieved, own
            )
            columns["terminated"] = torch.tensor(bool(ends or failed))
        return replace(row, columns=columns)

    def _asked(self, function: Any, achieved: Any, desired: Any) -> Any:
        return function(achieved[None], desired[None])[0]


def _achieved(row: Row) -> float:
    return float(row.successor[_ACHIEVED])
