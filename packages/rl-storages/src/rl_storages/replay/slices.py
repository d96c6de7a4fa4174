"""What leaves a ring: slices, consecutive steps of all environments, and pieces of episodes."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import Trajectory
from rl_core.errors import DataError
from rl_core.storage import ORIGIN, DataSlice, check_slice, join_observation
from rl_storages.replay.columns import FIRST
from rl_storages.replay.flags import STEP, TERMINATED, VALID, Positions
from rl_storages.replay.ring import ReplayRing

NUM_ROWS = "num_rows"
"""The column `(B,)` that says how many rows of each environment a slice has."""


def copy_slice(ring: ReplayRing, start: int, end: int, length: int) -> DataSlice:
    """Copy steps, each with the row that follows it.

    Columns are `(L, B, ...)`. Of each environment the first ``num_rows`` rows are there, the last
    of which is not a step: it holds the observation that followed the last step. Rows that are not
    steps, and rows beyond ``num_rows``, hold zeros but for observations that are there.

    Args:
        ring: what is copied from.
        start: the first step; the newest step of all environments is ``length - 1``.
        end: after the last step.
        length: the most steps that are stored of an environment.
    """
    first: Positions = ring.cursor()
    num_rows = np.zeros(ring.num_envs, dtype=np.int64)
    for env, steps in enumerate(ring.step_positions()):
        missing = length - len(steps)
        taken = steps[max(start - missing, 0) : max(end - missing, 0)]
        if len(taken):
            first[env] = taken[0]
            num_rows[env] = taken[-1] - taken[0] + 2
    rows = np.arange(num_rows.max())[:, None]
    is_there = rows < num_rows
    slots = ring.slots(first + rows)
    is_step = is_there & (rows != num_rows - 1) & ((ring.flags[slots] & STEP) > 0)
    data: dict[str, Tensor] = {NUM_ROWS: torch.from_numpy(num_rows), ORIGIN: ring.origin(first)}
    for name, column in ring.columns.by_slot.items():
        kept = is_there if name in ring.observed else is_step
        part = column[torch.from_numpy(slots).to(column.device)]
        part[torch.from_numpy(~kept).to(column.device)] = 0
        data[name] = part
    if ring.observations.stacks is not None:
        stacks = ring.observations.stacks.read(torch.from_numpy(ring.slots(first)))
        missing_envs = torch.from_numpy(num_rows == 0)
        for name, stack in stacks.items():
            stack[missing_envs.to(stack.device)] = 0
            data[FIRST + name] = stack.unsqueeze(0)
    return data


def checked_num_rows(ring: ReplayRing, data: DataSlice) -> Positions:
    """Compare a slice with the ring's columns.

    Returns:
        How many rows of each environment it has, shape `(B,)`.

    Raises:
        DataError: when a column is missing or unknown, of other shape or dtype, or says what
            cannot be.
    """
    length = len(data["reward"]) if "reward" in data and data["reward"].dim() else 0
    expected = {
        name: ((length, *column.shape[1:]), column.dtype)
        for name, column in ring.columns.by_row.items()
    }
    expected[NUM_ROWS] = ((ring.num_envs,), torch.int64)
    if ring.observations.stacks is not None:
        for name in ring.observations.stacks.names:
            frame = ring.columns.by_slot[name]
            stack = (1, ring.num_envs, ring.observations.stacks.size, *frame.shape[1:])
            expected[FIRST + name] = (stack, frame.dtype)
    check_slice(data, expected)
    if unknown := sorted(set(data) - {*expected, ORIGIN}):
        raise DataError(f"data slice has columns that are not stored here: {unknown}")
    num_rows: Positions = data[NUM_ROWS].cpu().numpy()
    if ((num_rows < 0) | (num_rows > length) | (num_rows == 1)).any():
        raise DataError(
            f"data slice column '{NUM_ROWS}': expected 0, or from 2 to {length}, got "
            f"{num_rows.tolist()}"
        )
    flags = data["flags"].cpu().numpy()
    rows = np.arange(length)[:, None]
    is_step = (flags & STEP) > 0
    begins = is_step[0] if length else num_rows > 0
    if (is_step & (rows >= num_rows - 1)).any() or (flags[~is_step] != 0).any():
        raise DataError("data slice column 'flags': a row that is not a step is marked as one")
    if ((num_rows > 0) & ~begins).any():
        raise DataError("data slice column 'flags': expected the first row to be a step")
    return num_rows


def ring_trajectories(ring: ReplayRing) -> Iterator[Trajectory]:
    """Yield the runs of consecutive transitions, which end where an episode ends or is cut.

    Args:
        ring: what is read; the row after a run holds what followed its last transition.
    """
    actions = ring.columns.by_slot["action"]
    for env, positions in enumerate(ring.step_positions()):
        slots = positions % ring.num_rows * ring.num_envs + env
        is_transition = (ring.flags[slots] & VALID) > 0
        positions, slots = positions[is_transition], slots[is_transition]
        breaks = np.flatnonzero(np.diff(positions) > 1) + 1
        for run in np.split(slots, breaks):
            if len(run) == 0:
                continue
            following = (run[-1:] + ring.num_envs) % ring.num_slots
            observed = ring.observations.read(torch.from_numpy(np.append(run, following)))
            yield Trajectory(
                observation=join_observation({n: part.cpu() for n, part in observed.items()}),
                action=actions[torch.from_numpy(run).to(actions.device)].cpu(),
                reward=torch.from_numpy(ring.reward.take(run)),
                terminated=bool(ring.flags[run[-1]] & TERMINATED),
            )
