"""How a rollout is cut into minibatches."""

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor

from rl_core.batch import RolloutBatch
from rl_core.errors import ConfigError
from rl_core.storage import columns_below, join_observation

SEQUENCE_LENGTH = 16
"""Rows per sequence where nobody says otherwise."""


def sequence_length_of(num_steps: int, sequence_length: int | None) -> int:
    """Return how many rows the sequences have that a rollout is cut into.

    Args:
        num_steps: rows of the rollout.
        sequence_length: what was asked for; None takes the largest length from half of
            `SEQUENCE_LENGTH` up to it that divides the rollout, or else the smallest above.

    Raises:
        ConfigError: when a rollout is not a whole number of sequences.
    """
    if sequence_length is None:
        shorter = range(min(SEQUENCE_LENGTH, num_steps), SEQUENCE_LENGTH // 2 - 1, -1)
        longer = range(SEQUENCE_LENGTH + 1, num_steps + 1)
        return next((n for n in chain(shorter, longer) if num_steps % n == 0), num_steps)
    if num_steps % sequence_length:
        divisors = [n for n in range(1, num_steps + 1) if num_steps % n == 0]
        closest = min(divisors, key=lambda n: abs(n - sequence_length))
        raise ConfigError(
            f"storage.sequence_length={sequence_length} does not divide storage.num_steps="
            f"{num_steps}; the closest that does is {closest}"
        )
    return sequence_length


def shuffled_block(units: int, count: int, generator: torch.Generator) -> Tensor:
    """Deal the numbers below ``units`` out to ``count`` rows, as evenly as can be.

    Returns:
        Shape `(count, N)`; shorter rows end in -1.
    """
    order = torch.randperm(units, generator=generator)
    size, extra = divmod(units, count)
    block = order[: units - extra].view(count, size)
    if extra == 0:
        return block
    last = order.new_full((count, 1), -1)
    last[:extra, 0] = order[units - extra :]
    return torch.cat([block, last], dim=1)


def minibatches(
    columns: Mapping[str, Tensor],
    indices: Tensor,
    state: tuple[str, ...],
    sequence_length: int | None,
) -> Iterator[RolloutBatch]:
    """Make one batch per row of a block.

    Args:
        columns: each `(T, B, ...)`, by the names of `RolloutRows.columns`, and the prepared ones.
        indices: shape `(K, N)`, of samples, or of sequences; those below 0 are padding, whose mask
            is 0.
        state: names of the recurrent state; none where samples are drawn alone.
        sequence_length: rows of a sequence; None where samples are drawn alone.
    """
    num_envs = columns["valid"].shape[1]
    rows = _rows_of(indices.clamp(min=0), num_envs, sequence_length)

    def take(column: Tensor) -> tuple[Tensor, ...]:
        taken = column.flatten(0, 1).index_select(0, rows.flatten())
        return taken.view(*rows.shape, *column.shape[2:]).unbind(0)

    taken = {
        name: take(column)
        for name, column in columns.items()
        if name not in ("reward", "terminated", "truncated") and not name.startswith("state/")
    }
    counts = (indices >= 0).to(torch.float32).unbind(0)
    first = rows[:, 0].flatten()
    states = {
        name: columns[f"state/{name}"].flatten(0, 1).index_select(0, first).view(*indices.shape, -1)
        for name in state
    }
    extras = columns_below("extras/", taken)
    for k in range(len(indices)):
        yield RolloutBatch(
            observation=join_observation({n: parts[k] for n, parts in taken.items()}),
            action=taken["action"][k],
            log_prob=taken["log_prob"][k],
            value=taken["value"][k],
            advantage=taken["advantage"][k],
            value_target=taken["value_target"][k],
            mask=taken["valid"][k] * counts[k],
            episode_start=taken["episode_start"][k],
            state={name: part[k] for name, part in states.items()},
            extras={name: parts[k] for name, parts in extras.items()},
        )


def _rows_of(indices: Tensor, num_envs: int, sequence_length: int | None) -> Tensor:
    """Find the rows of samples `(K, N)`, or of sequences, `(K, L, N)`, among all `T * B`."""
    if sequence_length is None:
        return indices
    sequence, env = indices // num_envs, indices % num_envs
    step = torch.arange(sequence_length, device=indices.device).unsqueeze(1)
    return (sequence.unsqueeze(1) * sequence_length + step) * num_envs + env.unsqueeze(1)
