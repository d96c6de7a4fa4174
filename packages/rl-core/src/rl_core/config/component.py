"""A component by its registered name, and its options, whose entries are attributes too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rl_core.config._types import Json
from rl_core.config.layout import COMPONENTS, plain_table
from rl_core.errors import ConfigError, nearest

CUSTOM = "custom"
"""The name of a component that was given as a Python object and has no registered name."""

_KINDS = (*COMPONENTS, "add_on", "sampler", "logger", "callback")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", re.ASCII)


class Options(dict[str, Json]):
    """Plain options; ``options.optimizer.eps`` reads what ``options["optimizer"]["eps"]`` does.

    An option with the name of a dictionary's method, such as ``items``, is read by its key alone.

    Args:
        table: plain data; tables in it become `Options` too.
        path: what errors call it.
    """

    def __init__(self, table: dict[str, Json], path: str) -> None:
        super().__init__(
            {
                name: Options(value, f"{path}.{name}") if isinstance(value, dict) else value
                for name, value in table.items()
            }
        )
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python's own protocols, such as that of copying
            raise AttributeError(name)
        if name not in self:
            raise AttributeError(f"[{self._path}] gives no option {name!r}{nearest(name, self)}")
        return self[name]


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A component by its registered name and its options.

    Args:
        kind: ``env``, ``actor``, ``algorithm``, ``storage``, ``add_on``, ``sampler``, ``logger`` or
            ``callback``.
        name: the registered name, or `CUSTOM`.
        kwargs: options; kept as plain data, so a tuple becomes a list and None the text "none".

    Raises:
        ConfigError: when the name could stand for anything but a registered name, or an option is
            not plain data.
    """

    kind: str
    name: str
    kwargs: Mapping[str, Json] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ConfigError(
                f"got the component kind {self.kind!r}{nearest(str(self.kind), _KINDS)}"
            )
        _check_name(self.kind, self.name)
        if "name" in self.kwargs:
            raise ConfigError(
                f"[{self.kind}] has an option 'name', which is reserved for the registered name"
            )
        object.__setattr__(self, "kwargs", Options(plain_table(self.kwargs, self.kind), self.kind))

    def __getitem__(self, option: str) -> Json:
        if option not in self.kwargs:
            raise ConfigError(
                f"[{self.kind}] gives no option {option!r}{nearest(option, self.kwargs)}"
            )
        return self.kwargs[option]

    def __getattr__(self, option: str) -> Any:
        if option.startswith("__"):  # of Python's own protocols, such as that of copying
            raise AttributeError(option)
        return getattr(self.kwargs, option)

    @property
    def is_custom(self) -> bool:
        """Whether the component was a Python object that must be given again."""
        return self.name == CUSTOM


def _check_name(kind: str, name: str) -> None:
    pattern = _ENV_NAME if kind == "env" else _NAME
    if isinstance(name, str) and len(name) <= 200 and pattern.fullmatch(name):
        return
    advice = "a registered name of letters, digits, '-' and '_'"
    if kind == "env":
        advice = "an environment id such as CartPole-v1 or ALE/Pong-v5; import the module that"
        advice += " registers it in your own code, since 'module:id' would let data choose code"
    raise ConfigError(f"[{kind}] name: got {str(name)[:60]!r}; expected {advice}")
