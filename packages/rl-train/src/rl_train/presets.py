"""Presets: tuned options that an algorithm's package ships, one file for each environment or more.

A preset is part of a recipe in TOML, with the length of the run as ``total_steps`` of its trainer.
Its file is ``PACKAGE/presets/ALGORITHM/ENVIRONMENT.toml``, or ``ENVIRONMENT@NAME.toml`` where there
are several to choose from by name; also in the packages of plug-ins.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import cast

from rl_core import plugins
from rl_core.config import Tables
from rl_core.errors import ConfigError, nearest
from rl_train.recipe_files import load_tables


def read_preset(
    algorithm: str, env: object, name: bool | str | None = True
) -> tuple[Tables, dict[str, Tables]]:
    """Read an algorithm's preset for an environment.

    Args:
        algorithm: registered name.
        env: Gymnasium id.
        name: of one of several presets; True takes the one without a name, and False or None none.

    Returns:
        Which preset it is and the length of the run, for the recipe's ``resolved``; and options by
        section.

    Raises:
        ConfigError: when there is none, or the file is not part of a recipe.
        PluginError: for an unknown algorithm.
    """
    if not name:
        return {}, {}
    known = preset_envs(algorithm)
    if env not in known:
        raise ConfigError(f"{algorithm} has no preset for {env!r}{nearest(str(env), known)}")
    wanted, names = "" if name is True else name, known[str(env)]
    if wanted not in names:
        named = [other for other in names if other]
        missing = f"preset {name!r}" if wanted else "preset without a name"
        hint = nearest(wanted, named) if named else ""
        unnamed = "; one has no name" if "" in names else ""
        raise ConfigError(f"{algorithm} has no {missing} for {env!r}{hint}{unnamed}")
    preset = f"{env}@{wanted}" if wanted else str(env)
    sections = cast("dict[str, Tables]", load_tables(_folder(algorithm) / f"{preset}.toml"))
    trainer = dict(sections.get("trainer", {}))
    if (total_steps := trainer.pop("total_steps", None)) is None:
        raise ConfigError(f"the preset {algorithm}/{preset} lacks total_steps of its trainer")
    resolved: Tables = {"preset": f"{algorithm}/{preset}", "total_steps": total_steps}
    return resolved, {**sections, "trainer": trainer}


def preset_envs(algorithm: str) -> dict[str, list[str]]:
    """Return the environments that an algorithm has presets for.

    Returns:
        The names of the presets by Gymnasium id; that of one without a name is empty.

    Raises:
        PluginError: for an unknown algorithm.
    """
    folder, found = _folder(algorithm), dict[str, list[str]]()
    for path in sorted(folder.rglob("*.toml")):
        env, _, name = path.relative_to(folder).with_suffix("").as_posix().partition("@")
        found.setdefault(env, []).append(name)
    return found


def _folder(algorithm: str) -> Path:
    package = plugins.load("algorithm", algorithm).__module__.partition(".")[0]
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "presets" / algorithm
