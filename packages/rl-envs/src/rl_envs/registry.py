"""Looks up ids in Gymnasium's registry; errors say how to mend a wrong id."""

import difflib

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from rl_core import plugins
from rl_core.errors import ConfigError
from rl_envs.families import REPLACED_IDS, family_of_id, registering_installed


def find_spec(env_id: str) -> EnvSpec:
    """Look up an environment; an id without a version means the newest.

    Packages of a known family (see `rl_envs.families`) are imported if the id is one of theirs.

    Raises:
        ConfigError: if the id is not registered; the message names the newest version or the
            nearest id. Also for ``module:id``, because a name must not choose code to import.
        MissingExtraError: if the package of a known family is not installed.
    """
    if spec := _registered(env_id):
        return spec
    if ":" in env_id:
        module, _, name = env_id.partition(":")
        raise ConfigError(
            f"the environment id '{env_id}' names a module to import, which is not allowed; import "
            f"{module} yourself and ask for '{name}'"
        )
    if family := family_of_id(env_id):
        family.require(env_id)
        if spec := _registered(env_id):
            return spec
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
        for _ in registering_installed():  # some ids tell no family, such as Pong-v4
            if spec := _registered(env_id):
                return spec
        raise _unknown(env_id)
    if (same := _closest(env_id)) is not None and same.endswith(f"/{name}-v{version}"):
        raise _unknown(env_id)  # which names the family that has this version
    hint = f"; the newest version is '{get_env_id(namespace, name, newest)}'"
    raise ConfigError(f"no environment is registered as '{env_id}'{hint}")


def with_version(env_id: str) -> str:
    """Return an id with its version: the newest, where it names none.

    Raises:
        ConfigError: as `find_spec`, for an id without a version.
        MissingExtraError: likewise.
    """
    try:
        is_complete = parse_env_id(env_id)[2] is not None
    except gymnasium.error.Error:
        is_complete = True  # not one of Gymnasium's
    return env_id if is_complete else find_spec(env_id).id


def _registered(env_id: str) -> EnvSpec | None:
    """Return what an id is registered as; without a version, the newest."""
    if env_id in gymnasium.registry:
        return gymnasium.registry[env_id]
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        return None
    newest = None if version is not None else find_highest_version(namespace, name)
    return None if newest is None else gymnasium.registry[get_env_id(namespace, name, newest)]


def _unknown(env_id: str) -> ConfigError:
    """Build an error that names the nearest id of all packages that are installed."""
    vectors = difflib.get_close_matches(env_id, plugins.available("env"), n=1, cutoff=0.75)
    close = _closest(env_id) or next(iter(vectors), None)
    for _ in registering_installed():
        close = close or _closest(env_id)
    namespaces = {(spec.namespace or "").lower() for spec in gymnasium.registry.values()}
    namespace = env_id.lower().rpartition("/")[0]
    hints = [] if close is None else [f"did you mean '{close}'?"]
    if namespace not in namespaces or (not namespace and "/" in (close or "/")):
        hints += [
            "if another module registers it, import that module first (on the command line: "
            "--import MODULE); if a plug-in does, install it"
        ]
    if not hints:
        hints = [f"see the ids of the family {env_id.rpartition('/')[0]} in gymnasium.registry"]
    return ConfigError(f"no environment is registered as '{env_id}'; {' '.join(hints)}")


def _closest(env_id: str) -> str | None:
    """Return the id with the same name, or with one that differs by a typing mistake.

    It is of the same namespace, if that is registered. Of several, the same version comes first,
    then the newest.
    """
    namespace, _, rest = env_id.lower().rpartition("/")
    name, _, version = rest.rpartition("-v")
    specs = gymnasium.registry.values()
    inside = [spec for spec in specs if namespace and (spec.namespace or "").lower() == namespace]
    by_name: dict[str, list[EnvSpec]] = {}
    for spec in inside or specs:
        by_name.setdefault(spec.name.lower(), []).append(spec)
    close = difflib.get_close_matches(name or rest, by_name, n=1, cutoff=0.75)
    if inside and not close:
        close = [other for other in by_name if other.startswith(name or rest)]
    if not close:
        return None
    return max(
        by_name[close[0]], key=lambda one: (str(one.version) == version, one.version or 0)
    ).id
