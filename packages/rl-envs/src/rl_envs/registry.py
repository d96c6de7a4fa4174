"""Looks up ids in Gymnasium's registry; errors say how to mend a wrong id."""

import difflib
import importlib
import sys
from importlib.util import find_spec as find_module

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from rl_core.errors import ConfigError, MissingExtraError

_PACKAGES = {"ALE": ("ale_py", "ale-py")}
"""By namespace of ids: the module that registers them, and its distribution."""

_ROBOTICS = (
    "Fetch",
    "HandReach",
    "HandManipulate",
    "AntMaze",
    "PointMaze",
    "AdroitHand",
    "FrankaKitchen",
)
"""Prefixes of the ids of Gymnasium-Robotics, which have no namespace."""


def find_spec(env_id: str) -> EnvSpec:
    """Look up a registered environment; an id without a version means the newest.

    Raises:
        ConfigError: if the id is not registered; the message names the newest version or the
            nearest id. Also for ``module:id``, because a name must not choose code to import.
        MissingExtraError: if the package of a known namespace is not installed.
    """
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    if ":" in env_id:
        module, _, name = env_id.partition(":")
        raise ConfigError(
            f"the environment id '{env_id}' names a module to import, which is not allowed; import "
            f"{module} yourself and ask for '{name}'"
        )
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        raise ConfigError(f"no environment is registered as '{env_id}'{_similar(env_id)}") from None
    module, distribution = _PACKAGES.get(namespace or "", ("", ""))
    if module and find_module(module) is None:
        raise MissingExtraError(f"{env_id} needs its simulator: pip install {distribution}")
    is_robotics = namespace is None and name.startswith(_ROBOTICS)
    if is_robotics and "gymnasium_robotics" not in sys.modules:
        try:  # importing it registers its ids
            gymnasium.register_envs(importlib.import_module("gymnasium_robotics"))
        except ImportError as error:
            raise MissingExtraError(
                f"{env_id} needs its simulator: pip install 'rl-envs[robotics]' ({error})"
            ) from error
        return find_spec(env_id)
    newest = find_highest_version(namespace, name)
    if newest is None:
        raise ConfigError(f"no environment is registered as '{env_id}'{_similar(env_id)}")
    newest_id = get_env_id(namespace, name, newest)
    if version is not None:
        hint = f"; the newest version is '{newest_id}'"
        raise ConfigError(f"no environment is registered as '{env_id}'{hint}")
    return gymnasium.registry[newest_id]


def _similar(env_id: str) -> str:
    by_lower = {known.lower(): known for known in gymnasium.registry}
    close = difflib.get_close_matches(env_id.lower(), by_lower, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{by_lower[close[0]]}'?"
    return "; if another package registers it, import that package first"
