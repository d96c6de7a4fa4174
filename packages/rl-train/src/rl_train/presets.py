"""Presets: tuned options that an algorithm's package ships, one file for each environment.

A preset is part of a recipe in TOML, with the length of the run, in
``PACKAGE/presets/ALGORITHM/ENVIRONMENT.toml``. Packages of others may have such a folder as well.
"""

from importlib.util import find_spec
from pathlib import Path

from rl_core import plugins
from rl_core.errors import ConfigError, nearest


def preset_file(algorithm: str, env: str) -> Path:
    """Return the file of the preset for an environment.

    Args:
        algorithm: registered name.
        env: Gymnasium id.

    Raises:
        ConfigError: when there is none.
        PluginError: for an unknown algorithm.
    """
    known = preset_envs(algorithm)
    if env not in known:
        raise ConfigError(f"{algorithm} has no preset for {env!r}{nearest(env, known)}")
    return _folder(algorithm) / f"{env}.toml"


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
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "presets" / algorithm
