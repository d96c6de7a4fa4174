"""Plug-ins: components that installed distributions register under a name.

An algorithm of your own is registered in the ``pyproject.toml`` of its distribution::

    [project.entry-points."rl_core.algorithms"]
    my-algorithm = "my_package:MyAlgorithm"

Listing plug-ins imports nothing; loading one imports only the component of that exact name. An
allow-list of distributions, given by `set_allowed` or the environment variable ``RL_PLUGINS``,
limits which can be loaded. It is not a sandbox: installed packages can already run code.
"""

import contextlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import cast

from packaging.requirements import InvalidRequirement, Requirement

from rl_core.errors import PluginError, in_brief, nearest
from rl_core.other_names import variants

KINDS = (
    "algorithms",
    "storages",
    "samplers",
    "envs",
    "actors",
    "add_ons",
    "executors",
    "loggers",
    "callbacks",
)
"""The kinds of plug-ins, each registered in the entry-point group ``rl_core.<kind>``."""

ALLOW_VARIABLE = "RL_PLUGINS"
"""Environment variable with the allowed distributions, separated by commas; empty allows none."""

_REQUIRED = {
    "algorithms": ("rl_core.algorithm:Algorithm",),
    "storages": ("rl_core.storage:Storage",),
    "samplers": ("rl_core.storage:IndexSampler",),
    "actors": ("rl_core.actor:Actor",),
    "add_ons": ("rl_core.algorithm:PolicyLossAddOn",),
    "loggers": ("rl_core.logger:Logger",),
    "callbacks": ("rl_train:Callback",),
    "envs": ("gymnasium:Env", "rl_core.env:VecEnv"),
    "executors": ("builtins:object",),
}
"""By kind, the classes of which a plug-in must be a subclass of at least one."""

_ONPOLICY, _OFFPOLICY = "rl-algos-onpolicy", "rl-algos-offpolicy"
_FIRST_PARTY = {
    "algorithms": {
        **dict.fromkeys(("ppo", "a2c", "vpg", "trpo", "rnd-ppo"), _ONPOLICY),
        **dict.fromkeys(("dqn", "rainbow", "ddpg", "td3", "sac", "redq", "droq", "bc"), _OFFPOLICY),
        **dict.fromkeys(("maml-vpg", "maml-ppo", "maml-trpo", "pearl"), "rl-meta"),
    },
    "actors": {
        "on-policy": _ONPOLICY,
        "off-policy": _OFFPOLICY,
        "context-conditioned": "rl-meta",
    },
    "add_ons": dict.fromkeys(
        ("rnd", "attraction-kl", "repulsion-kl", "reward-predictor", "return-predictor"), _ONPOLICY
    ),
    "storages": {"rollout": "rl-storages", "replay": "rl-storages", "task-replay": "rl-meta"},
}
_OURS = {"rl-core", "rl-envs", "rl-train"}.union(*map(dict.values, _FIRST_PARTY.values()))
"""Distributions whose versions a plug-in has to fit."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plug-in's metadata, read without importing it.

    Attributes:
        entry_point: the object it stands for, as ``module:name``.
        allowed: whether the allow-list permits loading it.
        rivals: other distributions that register the same name, which prevents loading it.
    """

    kind: str
    name: str
    distribution: str
    version: str
    entry_point: str
    allowed: bool = True
    rivals: tuple[str, ...] = ()


_allowed: frozenset[str] | None = None


def set_allowed(distributions: Collection[str] | None) -> None:
    """Permit only the plug-ins of some distributions.

    Args:
        distributions: their names, which override ``RL_PLUGINS``; None lets the environment
            variable decide again, which permits all where it is not set.
    """
    global _allowed  # one switch for the process, like the variable it stands for
    _allowed = None if distributions is None else frozenset(map(_normalized, distributions))


def is_first_party(module: str) -> bool:
    """Return whether a module, by its name, is of one of this project's packages."""
    return _normalized(module.partition(".")[0]) in _OURS


def _known_kind(kind: str) -> str:
    """Return one of `KINDS` for its name or its singular.

    Raises:
        PluginError: when there is no such kind.
    """
    plural = kind if kind in KINDS else f"{kind}s"
    if plural not in KINDS:
        raise PluginError(f"there are no plug-ins of kind {kind!r}{nearest(kind, KINDS)}")
    return plural


def available(kind: str) -> Mapping[str, PluginInfo]:
    """List the plug-ins of a kind without importing them.

    Args:
        kind: one of `KINDS`, or its singular such as ``algorithm``.

    Returns:
        By name, in alphabetical order.

    Raises:
        PluginError: when there is no such kind.
    """
    claims: dict[str, list[PluginInfo]] = {}
    for claim in dict.fromkeys(_claims(_known_kind(kind))):
        claims.setdefault(claim.name, []).append(claim)
    return {name: _chosen(claims[name]) for name in sorted(claims)}


def load(kind: str, name: str) -> Callable[..., object]:
    """Import one plug-in by its exact name and check what it is.

    Args:
        kind: one of `KINDS`, or its singular such as ``algorithm``.
        name: the registered name.

    Returns:
        The class; for ``envs`` a class or a function that makes an environment.

    Raises:
        PluginError: when the name is not text, unknown, registered by two distributions, outside
            the allow-list, made for another version of one of our packages, fails to import, or
            stands for something of the wrong class.
    """
    kind = _known_kind(kind)
    if not isinstance(name, str):
        raise PluginError(f"the name of the {kind[:-1]} is {name!r}; expected text")
    info = available(kind).get(name)
    if info is None:
        raise PluginError(_unknown(kind, name))
    if not info.allowed:
        raise PluginError(
            f"{kind[:-1]} {name!r} of {info.distribution} is installed but not allowed; add"
            f" {info.distribution} to {ALLOW_VARIABLE} or to set_allowed(...)"
        )
    if info.rivals:
        claimants = " and ".join((info.distribution, *info.rivals))
        raise PluginError(
            f"{kind[:-1]} {name!r} is registered by {claimants}; uninstall one, or allow only one"
            f" through {ALLOW_VARIABLE}"
        )
    if misfit := _misfit(info.distribution, info.version):
        raise PluginError(f"{kind[:-1]} {name!r} of {misfit}")
    try:
        loaded: object = metadata.EntryPoint(name, info.entry_point, f"rl_core.{kind}").load()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{_title(info)} cannot be imported: {in_brief(error)}; repair or"
            f" reinstall {info.distribution}"
        ) from error
    return _checked(info, loaded)


_read: dict[str, tuple[object, list[PluginInfo]]] = {}


def _claims(kind: str) -> list[PluginInfo]:
    """Return one plug-in for each registration; a name may be registered more than once.

    Metadata are read again only after a folder of Python's path changed: reading them takes some
    10 ms, and a command looks up names some 40 times.
    """
    changed = [_changed(Path(folder or ".")) for folder in sys.path]
    state = (metadata.entry_points, tuple(sys.path), tuple(changed))
    if kind not in _read or _read[kind][0] != state:
        points = metadata.entry_points(group=f"rl_core.{kind}")
        _read[kind] = state, [_claim(kind, point) for point in points]
    return [replace(claim, allowed=_is_allowed(claim.distribution)) for claim in _read[kind][1]]


def _changed(folder: Path) -> int:
    """Return when a folder was changed; 0 where there is none, or it cannot be looked at."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _claim(kind: str, point: metadata.EntryPoint) -> PluginInfo:
    name, version = "an unnamed distribution", "unknown"
    if point.dist is not None:
        name, version = str(point.dist.name), str(point.dist.version)
    return PluginInfo(kind, point.name, name, version, point.value)


def _chosen(claims: list[PluginInfo]) -> PluginInfo:
    """Return the first allowed plug-in of a name, with the rivals that prevent loading it."""
    first, *others = sorted(claims, key=lambda claim: (not claim.allowed, claim.distribution))
    return replace(first, rivals=tuple(other.distribution for other in others if other.allowed))


def _is_allowed(distribution: str) -> bool:
    allowed = _allowed
    if allowed is None:
        listed = os.environ.get(ALLOW_VARIABLE)
        if listed is None:
            return True
        allowed = frozenset(_normalized(name) for name in listed.split(","))
    return _normalized(distribution) in allowed | {"rl-core"}


def _normalized(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution.strip()).lower()


def _unknown(kind: str, name: str) -> str:
    home = _FIRST_PARTY.get(kind, {}).get(name)
    if home is None and kind == "algorithms" and (ours := variants().get(name.lower())):
        return f"there is no {kind[:-1]} {name!r}; take {ours}"
    if home is None:
        known = nearest(name, available(kind)) or (
            "; none is installed: a package registers its own, and in Python objects are given"
        )
        return f"there is no {kind[:-1]} {name!r}{known}"
    try:
        fault = f"whose version {metadata.version(home)} lacks it; update it"
    except metadata.PackageNotFoundError:
        fault = "which is not installed; install it"
    # The packages are on no index: suggesting their bare names might install somebody else's.
    return f"`{name}` is in {home}, {fault} from a clone: pip install ./packages/{home}"


@cache
def _misfit(distribution: str, version: str) -> str | None:
    """Say which of our packages is not of a version that a distribution declares; None if all are.

    Pip only warns of it, and contracts change between versions.
    """
    try:
        declared = [Requirement(text) for text in metadata.requires(distribution) or ()]
    except (metadata.PackageNotFoundError, InvalidRequirement):
        return None
    for needed in declared:
        applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
        if not applies or _normalized(needed.name) not in _OURS:
            continue
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed = metadata.version(needed.name)
            if not needed.specifier.contains(installed, prereleases=True):
                return (
                    f"{distribution} {version} needs {needed.name}{needed.specifier}, but "
                    f"{needed.name} {installed} is installed; install versions that fit"
                )
    return None


def _title(info: PluginInfo) -> str:
    return (
        f"{info.kind[:-1]} {info.name!r} of {info.distribution} {info.version}"
        f" (entry point {info.entry_point})"
    )


def _checked(info: PluginInfo, loaded: object) -> Callable[..., object]:
    required = _REQUIRED[info.kind]
    if isinstance(loaded, type):
        if any(issubclass(loaded, cast("type", pkgutil.resolve_name(p))) for p in required):
            missing = sorted(getattr(loaded, "__abstractmethods__", ()))
            if missing:
                raise PluginError(f"{_title(info)} lacks {', '.join(missing)}; add what is missing")
            return loaded
    elif info.kind == "envs" and callable(loaded):
        return loaded
    expected = " or ".join(path.replace(":", ".") for path in required)
    if info.kind == "envs":
        expected += ", or a function that makes one"
    what = f"the class {loaded.__qualname__}" if isinstance(loaded, type) else repr(loaded)[:80]
    raise PluginError(f"{_title(info)} is {what}; expected a subclass of {expected}")
