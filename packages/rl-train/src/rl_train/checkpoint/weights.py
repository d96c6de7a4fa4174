"""Loading the weights of an earlier run into the networks of a new one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from torch import Tensor, nn

from rl_core.errors import CheckpointError, ConfigError, nearest
from rl_core.stateful import StateReader
from rl_core.storage import columns_below
from rl_train.checkpoint.checkpoints import Checkpoint, read_run

WeightSource: TypeAlias = str | Path | Mapping[str, str | Path]
"""A run, or one of its checkpoints, for all weights; or one for each part of the actor."""

_SHOWN = 4
"""How many names an error message lists."""


def load_weights(actor: nn.Module, source: WeightSource) -> None:
    """Load the actor's weights of an earlier run, all or those of some parts.

    All tensors are checked before any is changed. An algorithm copies its target networks from the
    actor when it is built, so load before that.

    Args:
        actor: actor whose parameters and buffers, such as running statistics, are overwritten.
        source: directory of a run or its folder ``best``, whose newest readable checkpoint is
            used, or of a checkpoint. In a mapping, the keys name submodules of both actors, such as
            ``"policy"`` or ``"critics"``.

    Raises:
        ConfigError: when the actor has no such part, or parts overlap.
        CheckpointError: when there is no checkpoint, it is damaged, or its tensors do not match
            those of the actor or part exactly; the message names missing, unexpected and
            different ones.
    """
    parts = source if isinstance(source, Mapping) else {"": source}
    _check_parts(actor, parts)
    loaded: dict[str, Tensor] = {}
    for part, directory in parts.items():
        loaded |= _tensors_for(actor, part, Path(directory))
    actor.load_state_dict({**actor.state_dict(), **loaded})


def actor_weights(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the parameters and buffers of the actor in a run's checkpoint, by the actor's names.

    Raises:
        CheckpointError: when it holds none.
    """
    state = StateReader(checkpoint.state, str(checkpoint.path))
    return columns_below("actor.", state.reader("algorithm").tensors("modules"))


def _check_parts(actor: nn.Module, parts: Mapping[str, str | Path]) -> None:
    if not parts:
        raise ConfigError("restart_model names no part; give at least one")
    known = [name for name, _ in actor.named_modules()]
    for part in parts:
        if part not in known:
            children = [name for name, _ in actor.named_children()]
            raise ConfigError(
                f"restart_model: {type(actor).__name__} has no part '{part}'"
                f"{nearest(part, children)}"
            )
        inside = [other for other in parts if other != part and other.startswith(_prefix(part))]
        if inside:
            raise ConfigError(
                f"restart_model: '{inside[0]}' is a part of '{part}'; leave one of them out"
            )


def _prefix(part: str) -> str:
    """Return what the names of all that a part holds begin with; "" is the whole actor."""
    return f"{part}." if part else ""


def _tensors_for(actor: nn.Module, part: str, directory: Path) -> dict[str, Tensor]:
    """Read the tensors of a part from a checkpoint, by the actor's own names."""
    prefix = _prefix(part)
    checkpoint = read_run(directory)
    saved, present = (
        {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}
        for weights in (actor_weights(checkpoint), actor.state_dict())
    )
    there, here = (
        {name: f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for name, t in w.items()}
        for w in (saved, present)
    )
    misfits = [
        f"{name} ({there.get(name, 'missing')} there, {here.get(name, 'missing')} here)"
        for name in {**here, **there}
        if there.get(name) != here.get(name)
    ]
    if misfits:
        more = f" and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
        what = f"part '{part}'" if part else "whole actor"
        raise CheckpointError(
            f"{checkpoint.path} does not fit the {what}: "
            f"{', '.join(misfits[:_SHOWN])}{more}. Build the actor with the options of that run, "
            "or name the parts to load"
        )
    return saved
