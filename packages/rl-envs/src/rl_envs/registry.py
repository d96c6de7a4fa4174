"""Looks up ids in Gymnasium's registry; errors say how to mend a wrong id."""

import difflib

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from rl_core import plugins
from rl_core.errors import ConfigError
from rl_envs.presets import REPLACED_IDS, preset_of_id, register_installed


def find_spec(env_id: str) -> EnvSpec:
    """Look up an environment; an id without a version means the newest.

    Packages of a known family (see `rl_envs.presets`) are imported if the id is one of theirs.

    Raises:
        ConfigError: if the id is not registered; the message names the newest version or the
            nearest id. Also for ``module:id``, because a name must not choose code to import.
        MissingExtraError: if the package of a known family is not installed.
    """
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    if ":" in env_id:
        module, _, name = env_id.partition(":")
        raise ConfigError(
            f"the environment id '{env_id}' names a module to import, which is not allowed; import "
            f"{module} yourself and ask for '{name}'"
        )
    if preset := preset_of_id(env_id):
        preset.require(env_id)
        if env_id in gymnasium.registry:
            return gymnasium.registry[env_id]
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        raise _unknown(env_id) from None
    if name in REPLACED_IDS:
        raise ConfigError(
            f"'{env_id}' belongs to Roboschool, which is no longer maintained; use "
            f"'{REPLACED_IDS[name]}'"
        )
    newest = find_highest_version(namespace, name)
    if newest is None:
        raise _unknown(env_id)
    newest_id = get_env_id(namespace, name, newest)
    if version is not None:
        if (same := _closest(env_id)) is not None and same.endswith(f"/{name}-v{version}"):
            raise _unknown(env_id)  # which names the family that has this version
        hint = f"; the newest version is '{newest_id}'"
        raise ConfigError(f"no environment is registered as '{env_id}'{hint}")
    return gymnasium.registry[newest_id]


def _unknown(env_id: str) -> ConfigError:
    """Build an error that names the nearest id of all packages that are installed."""
    vectors = difflib.get_close_matches(env_id, plugins.available("env"), n=1, cutoff=0.75)
    close = _closest(env_id) or next(iter(vectors), None)
    for _ in register_installed():
        close = close or _closest(env_id)
    namespaces = {(spec.namespace or "").lower() for spec in gymnasium.registry.values()}
    hints = [] if close is None else [f"did you mean '{close}'?"]
    if close is None or env_id.lower().rpartition("/")[0] not in namespaces:
        hints += [
            "if another module registers it, import that module first (on the command line: "
            "--import MODULE)"
        ]
    return ConfigError(f"no environment is registered as '{env_id}'; {' '.join(hints)}")


def _closest(env_id: str) -> str | None:
    """Return the id with the same name, or with one that differs by a typing mistake.

    Of several, the same version comes first, then the same namespace, then the newest version.
    """
    by_name: dict[str, list[EnvSpec]] = {}
    for spec in gymnasium.registry.values():
        by_name.setdefault(spec.name.lower(), []).append(spec)
    namespace, _, rest = env_id.lower().rpartition("/")
    name, _, version = rest.rpartition("-v")
    close = difflib.get_close_matches(name or rest, by_name, n=1, cutoff=0.75)
    if not close:
        return None

    def likeness(spec: EnvSpec) -> tuple[bool, bool, int]:
        has_namespace = (spec.namespace or "").lower() == namespace
        return str(spec.version) == version, has_namespace, spec.version or 0

    return max(by_name[close[0]], key=likeness).id
