"""From parts to the recipe that names them."""

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm
from rl_core.config import CUSTOM, ComponentSpec, Recipe, encode, options_of
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.storage import AnyStorage
from rl_core.types import Json
from rl_train.builder.components import PARTS, as_table, as_tables, parts_option

if TYPE_CHECKING:
    from rl_train.trainer.config import TrainerConfig

SECTIONS = ("env", "actor", "algorithm", "storage", "trainer")
"""The sections of a recipe that hold options."""


def describe(
    envs: VecEnv,
    algorithm: AnyAlgorithm,
    storage: AnyStorage,
    config: "TrainerConfig",
    seed: int,
) -> Recipe:
    """Return the recipe of parts that were built by hand.

    Registered components are recorded by name. The user's own objects are recorded as ``custom``
    and must be given again when the run is loaded.

    Args:
        envs: environments.
        algorithm: with its actor.
        storage: the storage.
        config: options of the trainer.
        seed: seed of the run.
    """
    actors = record_actors(algorithm.add_ons.loaded_actors)
    return Recipe(
        env=envs.component or ComponentSpec("env", CUSTOM, {"num_envs": envs.num_envs}),
        actor=describe_component("actor", algorithm.actor),
        algorithm=describe_component("algorithm", algorithm),
        storage=describe_component("storage", storage),
        trainer=as_table(config),
        seed=seed,
        device=str(algorithm.device),
        resolved={"actors": actors} if actors else {},
    )


def describe_component(kind: str, part: object, *, without_objects: bool = False) -> ComponentSpec:
    """Return a part's registered name and options; the user's own objects are ``custom``.

    Args:
        kind: ``actor``, ``algorithm``, ``storage`` or ``add_on``.
        part: an instance.
        without_objects: leave out objects that a registered part was given, where it can work
            without them.
    """
    custom = ComponentSpec(kind, CUSTOM, {})
    name = _registered_name(kind, type(part))
    uses_objects = not without_objects and getattr(part, "uses_objects", False)
    options = None if name is None or uses_objects else _options(part)
    if name is None or options is None:
        return custom
    parts = [describe_component(of, one) for of, one in _parts_of(kind, part)]
    if any(one.is_custom for one in parts):
        return custom
    return ComponentSpec(kind, name, {**options, **parts_option(kind, parts)})


def _parts_of(kind: str, part: object) -> list[tuple[str, object]]:
    """Return the parts that were given to a component, with their kind."""
    if kind not in PARTS:
        return []
    option, of, is_list = PARTS[kind]
    given = getattr(part, option, None)
    listed = list(given or ()) if is_list else [given]
    return [
        (of, one) for one in listed if one is not None and not getattr(one, "is_internal", False)
    ]


def changed_option(
    before: Recipe, now: Recipe, sections: Sequence[str], ignored: Collection[str] = ()
) -> tuple[str, Json, Json] | None:
    """Return the first option that differs between two recipes, and both values.

    Args:
        before: one recipe.
        now: the other one.
        sections: to compare, or ``seed``; components that are the user's own are left out.
        ignored: paths of options that may differ.

    Returns:
        Path, value before (None if it was not there) and value now; None if nothing differs.
    """
    for section in sections:
        old, new = (_table_of(recipe, section) for recipe in (before, now))
        if CUSTOM in (old.get("name"), new.get("name")):
            continue
        for key in {**old, **new}:
            path = f"{section}.{key}".strip(".")
            if old.get(key) != new.get(key) and path not in ignored:
                return path, old.get(key), new.get(key)
    return None


def _table_of(recipe: Recipe, section: str) -> Mapping[str, Json]:
    value = getattr(recipe, section)
    if isinstance(value, ComponentSpec):
        return {"name": value.name, **value.kwargs}
    return value if isinstance(value, Mapping) else {"": value}


def record_actors(actors: Mapping[str, object]) -> dict[str, Json]:
    """Describe actors by name for a recipe, leaving out the user's own."""
    specs = {name: describe_component("actor", actor) for name, actor in actors.items()}
    return {name: as_tables([spec])[0] for name, spec in specs.items() if not spec.is_custom}


def _registered_name(kind: str, cls: type) -> str | None:
    """Find the plug-in that is this class, among modules that are imported already."""
    for name, info in plugins.available(kind).items():
        module, _, attribute = info.entry_point.partition(":")
        if getattr(sys.modules.get(module), attribute, None) is cls:
            return name
    return None


def _options(part: object) -> Mapping[str, Json] | None:
    """Read the options back: from ``config``, or from attributes named like the parameters."""
    try:
        options = options_of(type(part))
        config = getattr(part, "config", None)
        if not isinstance(config, options):
            assert dataclasses.is_dataclass(options)
            names = [field.name for field in dataclasses.fields(options)]
            config = options(**{name: getattr(part, name) for name in names})
        table = encode(config)
    except (ConfigError, AttributeError, TypeError):
        return None
    return table if isinstance(table, dict) else None
