"""How a rollout is cut into minibatches."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rl_core.batch import RolloutBatch
from rl_core.errors import ConfigError
from rl_core.storage import join_observation


def count_minibatches(
    num_mini_batch: int | None,
    mini_batch_size: int | None,
    *,
    num_steps: int,
    num_envs: int,
    recurrent: bool,
) -> int:
    """Return how many minibatches one pass over a rollout makes.

    Args:
        num_mini_batch: that number itself, or None.
        mini_batch_size: samples in each, at most; or None.
        num_steps: rows of the rollout.
        num_envs: environments in each row.
        recurrent: minibatches are made of whole sequences, one per environment.

    Raises:
        ConfigError: when not just one of the two is given, or it asks for more than there is.
    """
    if (num_mini_batch is None) == (mini_batch_size is None):
        raise ConfigError("give just one of num_mini_batch and mini_batch_size")
    samples = num_steps * num_envs
    units = num_envs if recurrent else samples
    if num_mini_batch is not None:
        if num_mini_batch > units:
            what = "environments of a recurrent rollout" if recurrent else "samples"
            raise ConfigError(
                f"num_mini_batch={num_mini_batch} is more than the {units} {what}; use fewer "
                "minibatches or more environments"
            )
        return num_mini_batch
    assert mini_batch_size is not None
    if mini_batch_size > samples:
        raise ConfigError(
            f"mini_batch_size={mini_batch_size} is larger than the rollout of {samples} samples "
            f"({num_steps} steps x {num_envs} environments)"
        )
    if not recurrent:
        return -(-units // mini_batch_size)
    if mini_batch_size < num_steps:
        raise ConfigError(
            f"mini_batch_size={mini_batch_size} is smaller than one recurrent sequence of "
            f"{num_steps} steps; use at least that many"
        )
    return -(-units // (mini_batch_size // num_steps))


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
    columns: Mapping[str, Tensor], indices: Tensor, state: tuple[str, ...]
) -> Iterator[RolloutBatch]:
    """Make one batch per row of a block.

    Args:
        columns: each `(T, B, ...)`, by the names of `RolloutRows.columns`, and the prepared ones.
        indices: shape `(count, N)`, of samples, or of environments when recurrent; those below 0
            are padding, whose mask is 0.
        state: names of the recurrent state; none where samples are drawn alone.
    """
    flat = indices.reshape(-1)
    padding = flat < 0
    flat = flat.clamp(min=0)
    count, size = indices.shape

    def take(column: Tensor) -> tuple[Tensor, ...]:
        if state:
            taken = column.index_select(1, flat)
            return taken.view(len(column), count, size, *column.shape[2:]).unbind(1)
        rows = column.flatten(0, 1).index_select(0, flat)
        return rows.view(count, size, *column.shape[2:]).unbind(0)

    taken = {
        name: take(column)
        for name, column in columns.items()
        if name not in ("reward", "terminated", "truncated") and not name.startswith("state/")
    }
    counts = (~padding).to(torch.float32).view(count, size).unbind(0)
    states = {
        name: columns[f"state/{name}"][0].index_select(0, flat).view(count, size, -1)
        for name in state
    }
    extras = {
        name.removeprefix("extras/"): parts
        for name, parts in taken.items()
        if name.startswith("extras/")
    }
    for k in range(count):
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
