"""Presets: tuned options that an algorithm's package ships, one file for each environment.

A preset is part of a recipe in TOML, with the length of the run as ``total_steps`` of its trainer.
Its file is ``PACKAGE/presets/ALGORITHM/ENVIRONMENT.toml``, also in the packages of plug-ins.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import cast

from rl_core import plugins
from rl_core.config import Tables
from rl_core.errors import ConfigError, nearest
from rl_train.recipe_files import load_tables


def read_preset(algorithm: str, env: object) -> tuple[Tables, dict[str, Tables]]:
    """Read an algorithm's preset for an environment.

    Args:
        algorithm: registered name.
        env: Gymnasium id.

    Returns:
        Its name and the length of the run, for the recipe's ``resolved``; and options by section.

    Raises:
        ConfigError: when there is none, or the file is no part of a recipe.
        PluginError: for an unknown algorithm.
    """
    known = preset_envs(algorithm)
    if env not in known:
        raise ConfigError(f"{algorithm} has no preset for {env!r}{nearest(str(env), known)}")
    sections = cast("dict[str, Tables]", load_tables(_folder(algorithm) / f"{env}.toml"))
    trainer = dict(sections.get("trainer", {}))
    if (total_steps := trainer.pop("total_steps", None)) is None:
        raise ConfigError(f"the preset of {algorithm} for {env} lacks total_steps of its trainer")
    resolved: Tables = {"preset": f"{algorithm}/{env}", "total_steps": total_steps}
    return resolved, {**sections, "trainer": trainer}


def preset_envs(algorithm: str) -> list[str]:
    """Return the ids of the environments that an algorithm has presets for.

    Raises:
        PluginError: for an unknown algorithm.
    """
    folder = _folder(algorithm)
    found = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.toml"))
    return sorted(name.as_posix() for name in found)


def _folder(algorithm: str) -> Path:
    package = plugins.load("algorithm", algorithm).__module__.partition(".")[0]
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "presets" / algorithm
