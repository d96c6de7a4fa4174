"""From parts that were composed by hand to the recipe that names them."""

import dataclasses
import sys
from collections.abc import Mapping

from rl_core import plugins
from rl_core.algorithm import AnyAlgorithm
from rl_core.codec import encode, options_of
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.recipe import CUSTOM, ComponentSpec, Recipe
from rl_core.storage import AnyStorage
from rl_core.trainer_config import TrainerConfig
from rl_core.types import Json


def describe(
    envs: VecEnv,
    algorithm: AnyAlgorithm,
    storage: AnyStorage,
    config: TrainerConfig,
    seed: int,
) -> Recipe:
    """Write the recipe of parts that are there already.

    What was made by a registered name is recorded by it; the user's own objects are recorded as
    ``custom`` and must be given again when the run is loaded.

    Args:
        envs: environments.
        algorithm: with its actor.
        storage: the storage.
        config: of the trainer.
        seed: of the run.
    """
    trainer = encode(config)
    assert isinstance(trainer, dict)
    return Recipe(
        env=envs.component or ComponentSpec("env", CUSTOM, {}),
        actor=_describe("actor", algorithm.actor),
        algorithm=_describe("algorithm", algorithm),
        storage=_describe("storage", storage),
        trainer=trainer,
        seed=seed,
        device=str(algorithm.device),
    )


def _describe(kind: str, part: object) -> ComponentSpec:
    name = _registered_name(kind, type(part))
    named = name is not None and not getattr(part, "uses_objects", False)
    options = _options(part) if named else None
    if name is None or options is None:
        return ComponentSpec(kind, CUSTOM, {})
    return ComponentSpec(kind, name, options)


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
