"""Loading the weights of an earlier run into the networks of a new one."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from torch import Tensor, nn

from rl_core.errors import CheckpointError, ConfigError, nearest
from rl_core.stateful import StateReader
from rl_train.checkpoint.directory import list_checkpoints
from rl_train.checkpoint.loading import load_checkpoint

WeightSource: TypeAlias = str | Path | Mapping[str, str | Path]
"""A run, or one of its checkpoints, for all weights; or one for each part of the actor."""

_ACTOR = "actor."
_SHOWN = 4
"""Number of names in an error message."""


def load_weights(actor: nn.Module, source: WeightSource) -> None:
    """Load the actor's weights of an earlier run, all or those of some parts.

    All tensors are checked before any is changed. An algorithm copies its target networks from the
    actor when it is built, so load before that.

    Args:
        actor: actor whose parameters and buffers, such as running statistics, are overwritten.
        source: directory of a run, whose newest checkpoint is used, or of a checkpoint. In a
            mapping, the keys name submodules of both actors, such as ``"policy"`` or ``"critics"``.

    Raises:
        ConfigError: when the actor has no such part, or parts overlap.
        CheckpointError: when there is no checkpoint, it is damaged, or its tensors do not match
            those of the actor or part exactly; the message names missing, unexpected and
            different ones.
    """
    if not isinstance(source, str | Path | Mapping):
        raise ConfigError(
            f"restart_model is {source!r}; expected a directory, or directories by part"
        )
    parts = source if isinstance(source, Mapping) else {"": source}
    _check_parts(actor, parts)
    loaded: dict[str, Tensor] = {}
    for part, directory in parts.items():
        loaded |= _tensors_for(actor, part, Path(directory))
    actor.load_state_dict({**actor.state_dict(), **loaded})


def _check_parts(actor: nn.Module, parts: Mapping[str, str | Path]) -> None:
    if not parts:
        raise ConfigError("restart_model names no part; give at least one")
    known = [name for name, _ in actor.named_modules()]
    for part, directory in parts.items():
        if not isinstance(directory, str | Path):
            raise ConfigError(f"restart_model.{part} is {directory!r}; expected a directory")
        if part not in known:
            children = [name for name, _ in actor.named_children()]
            raise ConfigError(
                f"restart_model: {type(actor).__name__} has no part '{part}'"
                f"{nearest(part, children)}"
            )
        inside = [other for other in parts if other.startswith(f"{part}.")]
        if inside:
            raise ConfigError(
                f"restart_model: '{inside[0]}' is a part of '{part}'; leave one of them out"
            )


def _tensors_for(actor: nn.Module, part: str, directory: Path) -> dict[str, Tensor]:
    """Read the tensors of a part from a checkpoint, by the actor's own names."""
    prefix = f"{part}." if part else ""
    path = _checkpoint_in(directory)
    state = StateReader(load_checkpoint(path).state, str(path))
    saved = {
        name.removeprefix(_ACTOR): tensor
        for name, tensor in state.reader("algorithm").tensors("modules").items()
        if name.startswith(_ACTOR + prefix)
    }
    wanted = {name: t for name, t in actor.state_dict().items() if name.startswith(prefix)}
    changed = [
        f"{name} ({_form(saved[name])} there, {_form(tensor)} here)"
        for name, tensor in wanted.items()
        if name in saved and _form(saved[name]) != _form(tensor)
    ]
    problems = [
        _listed("it lacks", [name for name in wanted if name not in saved]),
        _listed("it has, and this actor has not,", [name for name in saved if name not in wanted]),
        _listed("of another shape or dtype are", changed),
    ]
    if any(problems):
        what = f"part '{part}'" if part else "whole actor"
        raise CheckpointError(
            f"{path} does not fit the {what}: {'; '.join(filter(None, problems))}. Build the actor "
            "with the options of that run, or name the parts to load"
        )
    return saved


def _checkpoint_in(directory: Path) -> Path:
    """Return a checkpoint, or a run's newest one, damaged or not."""
    of_run = list_checkpoints(directory / "checkpoints")
    if of_run:
        return of_run[-1]
    if (directory / "manifest.json").is_file():
        return directory
    raise CheckpointError(
        f"{directory} is neither a checkpoint nor a run with some in {directory / 'checkpoints'}"
    )


def _listed(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(names[:_SHOWN])}{more}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
