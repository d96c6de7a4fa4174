"""Saving and loading storages, alone or from the checkpoint of a run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from rl_core import plugins
from rl_core.config import ComponentSpec, Recipe
from rl_core.errors import CheckpointError, ConfigError
from rl_core.stateful import StateReader
from rl_core.storage import AnyStorage, StorageSpec, TensorSpec
from rl_core.types import Json, StateDict
from rl_train.builder.components import construct_component
from rl_train.builder.describe import describe_component
from rl_train.checkpoint import Checkpoint, is_run, load_checkpoint, save_checkpoint


def save_storage(storage: AnyStorage, directory: str | Path, recipe: Recipe | None = None) -> Path:
    """Write a storage alone, as a directory that `load_storage` and `open_storage` read.

    Args:
        storage: an allocated storage.
        directory: the new directory; missing parents are created.
        recipe: recipe of the run that filled it; others need it to check the spaces and to convert
            the actions.

    Returns:
        The directory.

    Raises:
        CheckpointError: when it exists already or cannot be written.
        ConfigError: when the storage is not allocated yet.
    """
    storage.check_allocated()
    directory = Path(directory)
    return save_checkpoint(
        directory.parent,
        len(storage),
        state_of(storage),
        recipe=recipe,
        name=directory.name,
    )


def load_storage(storage: AnyStorage, directory: str | Path) -> None:
    """Load a storage that was saved alone into an allocated one like it, bit for bit.

    What is inserted next does not continue the loaded episodes.

    Raises:
        CheckpointError: when the files are missing or damaged, or of another kind of storage.
        ConfigError: when the storage is not allocated yet.
    """
    storage.check_allocated()
    saved = StateReader(_read(Path(directory)).state, str(directory))
    check_spec(storage, saved)
    try:
        storage.load_state_dict(saved.tree("storage"))
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_differences(storage, saved)}") from error
    storage.mark_boundary()  # its rows do not continue in this run


def open_storage(directory: str | Path) -> AnyStorage:
    """Open a storage that was saved alone.

    Args:
        directory: directory that `save_storage` wrote.

    Returns:
        A storage of the same type, size and contents, in memory. Options that only collecting
        needs, such as an environment's reward function, are left out (`Storage.options_to_read`).

    Raises:
        CheckpointError: when the files are missing or damaged.
        ConfigError: when it has no registered name.
    """
    return storage_of(_read(Path(directory)))


def _read(directory: Path) -> Checkpoint:
    if is_run(directory):
        raise CheckpointError(
            f"{directory} is a run, not a storage that was saved alone; to learn from its "
            "transitions, give it as trainer.demonstrations"
        )
    return load_checkpoint(directory)


def storage_of(checkpoint: Checkpoint) -> AnyStorage:
    """Build the storage in a checkpoint, of a storage alone or of a whole run.

    Raises:
        CheckpointError: when there is none.
        ConfigError: when the storage has no registered name.
    """
    if checkpoint.state.get("storage") is None:
        raise CheckpointError(
            f"{checkpoint.path} holds no transitions; expected a run that collected some and saves "
            "them (trainer.checkpoint_replay=True)"
        )
    saved = StateReader(checkpoint.state, str(checkpoint.path))
    component = _component(saved)
    if component.is_custom:
        raise ConfigError(
            f"the storage in {checkpoint.path} has a type without a registered name; load it into "
            "a storage of that type, and fill others from it"
        )
    spec = _spec_from(saved.reader("storage_spec"))
    cls = cast("type[AnyStorage]", plugins.load("storage", component.name))
    component = replace(component, kwargs=cls.options_to_read(component.kwargs))
    storage = cast("AnyStorage", construct_component("storage", component, {"device": spec.device}))
    storage.allocate(spec, torch.Generator())
    storage.load_state_dict(saved.tree("storage"))
    storage.mark_boundary()
    return storage


def state_of(storage: AnyStorage) -> StateDict:
    """Return the state of an allocated storage, from which `storage_of` can rebuild it.

    An empty tensor stands for the shape and dtype of each column.
    """
    spec = storage.spec
    assert spec is not None
    component = describe_component("storage", storage, without_objects=True)
    observation = spec.observation
    leaves = {"": observation} if isinstance(observation, TensorSpec) else observation
    return {
        "storage": storage.state_dict(),
        "storage_spec": {
            "component": {"name": component.name, "options": json.dumps(dict(component.kwargs))},
            "observation": {name: _empty(leaf) for name, leaf in leaves.items()},
            "action": _empty(spec.action),
            "num_envs": spec.num_envs,
            "state_sizes": dict(spec.state_sizes),
            "extras": {name: _empty(extra) for name, extra in spec.extras.items()},
        },
    }


def check_spec(storage: AnyStorage, saved: StateReader) -> None:
    """Check that an allocated storage has the same columns as a saved state from `state_of`.

    Raises:
        CheckpointError: when they differ, or the saved description is damaged.
    """
    _component(saved)
    spec, recorded = storage.spec, _spec_from(saved.reader("storage_spec"))
    assert spec is not None
    for name in ("observation", "action", "num_envs", "state_sizes", "extras"):
        kept, expected = getattr(recorded, name), getattr(spec, name)
        if kept != expected:
            raise CheckpointError(
                f"the saved storage has {name} {kept}, but this one has {expected}; load it into "
                "one like it, or give its directory as trainer.demonstrations if only the number "
                "of environments differs"
            )


def _differences(storage: AnyStorage, saved: StateReader) -> str:
    """Return a text with the options in which a storage differs from the saved one."""
    own = describe_component("storage", storage, without_objects=True)
    of_saved, of_this = (storage.options_to_read(c.kwargs) for c in (_component(saved), own))
    names = [name for name in of_this if name in of_saved and of_this[name] != of_saved[name]]
    saved_as, this = (", ".join(f"{n} = {of[n]}" for n in names) for of in (of_saved, of_this))
    return f"; the saved one was built with {saved_as}, this one with {this}" if names else ""


def _component(saved: StateReader) -> ComponentSpec:
    """Read the component of a storage from a state that `state_of` returned."""
    saved = saved.reader("storage_spec").reader("component")
    saved.expect(("name", "options"))
    options = cast("Mapping[str, Json]", json.loads(saved.text("options")))
    return ComponentSpec("storage", saved.text("name"), options)


def _spec_from(saved: StateReader) -> StorageSpec:
    leaves = {name: _form(leaf) for name, leaf in saved.tensors("observation").items()}
    sizes = saved.reader("state_sizes")
    return StorageSpec(
        observation=leaves.get("", leaves),
        action=_form(saved.tensor("action")),
        num_envs=saved.count("num_envs"),
        state_sizes={name: sizes.count(name) for name in saved.tree("state_sizes")},
        extras={name: _form(extra) for name, extra in saved.tensors("extras").items()},
        device=torch.device("cpu"),
    )


def _empty(spec: TensorSpec) -> Tensor:
    return torch.empty((0, *spec.shape), dtype=spec.dtype)


def _form(empty: Tensor) -> TensorSpec:
    return TensorSpec(tuple(empty.shape[1:]), empty.dtype)
