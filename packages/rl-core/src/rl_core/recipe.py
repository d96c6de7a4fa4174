"""Recipes: what a run is built from, as data.

A recipe names an environment, an actor, an algorithm and a storage by their registered names, with
plain options. It is the configuration file, the result of the command line, a part of every
checkpoint, and what a worker builds its parts from. A name is only ever looked up among the
installed plug-ins; nothing in a recipe can choose code.
"""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast

import tomli_w

from rl_core._durable import replace_file
from rl_core.codec import encode
from rl_core.errors import ConfigError, nearest
from rl_core.types import Json

FORMAT = 1
"""The version of the layout; a recipe of a later version is refused."""

CUSTOM = "custom"
"""The name of a component that was given as a Python object and has no registered name."""

MAX_BYTES = 2**20
MAX_DEPTH = 8

Tables: TypeAlias = dict[str, Json]
"""A recipe, or a part of one, in the layout of its file."""

_COMPONENTS = ("env", "algorithm", "actor", "storage")
_TABLES = (*_COMPONENTS, "trainer", "resolved")
_KEYS = ("format", "seed", "device", *_TABLES)

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*", re.ASCII)
_ENV_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*", re.ASCII)

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOML_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" + _STRING + r"|'[^'\n]*'|#[^\n]*", re.DOTALL
)
_SHORT_ARRAY = re.compile(rf"\[\n((?: +(?:[-+.\w]+|{_STRING}),\n)+) *\]")


@dataclass(frozen=True, slots=True)
class ComponentSpec:
    """A component by its registered name and its options.

    Args:
        kind: ``env``, ``actor``, ``algorithm`` or ``storage``.
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
        if self.kind not in _COMPONENTS:
            raise ConfigError(
                f"got the component kind {self.kind!r}{nearest(str(self.kind), _COMPONENTS)}"
            )
        _check_name(self.kind, self.name)
        if "name" in self.kwargs:
            raise ConfigError(
                f"[{self.kind}] has an option 'name', which is reserved for the registered name"
            )
        object.__setattr__(self, "kwargs", _plain_table(self.kwargs, self.kind))

    def __getitem__(self, option: str) -> Json:
        if option not in self.kwargs:
            raise ConfigError(
                f"[{self.kind}] gives no option {option!r}{nearest(option, self.kwargs)}"
            )
        return self.kwargs[option]

    def __contains__(self, option: object) -> bool:
        return option in self.kwargs

    def get(self, option: str, default: Json = None) -> Json:
        """Return an option, or a default where the recipe does not give it."""
        return self.kwargs.get(option, default)

    @property
    def is_custom(self) -> bool:
        """Whether the component was a Python object that must be given again."""
        return self.name == CUSTOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that a run is built from.

    Args:
        env: the environment by id, with the options of the environment maker.
        actor: the actor.
        algorithm: the algorithm.
        storage: the storage.
        trainer: options of the trainer.
        seed: from which every generator of the run is spawned; at least 0.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        format: version of the layout.
        resolved: what settings left to ``auto`` became.

    Raises:
        ConfigError: when a field has the wrong type or holds something that is not plain data.
    """

    env: ComponentSpec
    actor: ComponentSpec
    algorithm: ComponentSpec
    storage: ComponentSpec
    trainer: Mapping[str, Json] = field(default_factory=dict, hash=False)
    seed: int = 0
    device: str = "auto"
    format: int = FORMAT
    resolved: Mapping[str, Json] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for kind in _COMPONENTS:
            spec = getattr(self, kind)
            if not isinstance(spec, ComponentSpec) or spec.kind != kind:
                raise ConfigError(f"{kind}: got {spec!r}; expected ComponentSpec({kind!r}, ...)")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ConfigError(f"seed: got {self.seed!r}; expected an integer of at least 0")
        if not isinstance(self.device, str) or not self.device:
            raise ConfigError(f"device: got {self.device!r}; expected 'auto', 'cpu' or 'cuda'")
        _check_format(self.format)
        _check_values(self.device, "device", 1)
        _check_values(self.seed, "seed", 1)
        object.__setattr__(self, "trainer", _plain_table(self.trainer, "trainer"))
        object.__setattr__(self, "resolved", _plain_table(self.resolved, "resolved"))

    def to_tables(self) -> Tables:
        """Return a new tree in the layout of the file."""
        tables: Tables = {"format": self.format, "seed": self.seed, "device": self.device}
        for kind in _COMPONENTS:
            spec: ComponentSpec = getattr(self, kind)
            tables[kind] = {"name": spec.name, **_plain_table(spec.kwargs, kind)}
        for kind, options in (("trainer", self.trainer), ("resolved", self.resolved)):
            if options:
                tables[kind] = _plain_table(options, kind)
        return tables

    @classmethod
    def from_tables(cls, tables: Mapping[str, Json], source: str = "the recipe") -> "Recipe":
        """Build a recipe from data in the layout of the file.

        Args:
            tables: the whole recipe; ``format``, ``seed``, ``device``, ``trainer`` and ``resolved``
                may be left out.
            source: what to call the data in messages, such as the file's name.

        Raises:
            ConfigError: when a table or key is unknown or missing, or has the wrong type.
        """
        try:
            _check_layout(tables)
            specs = {kind: _component(kind, tables) for kind in _COMPONENTS}
            return cls(
                **specs,
                trainer=cast("Tables", tables.get("trainer", {})),
                seed=cast("int", tables.get("seed", 0)),
                device=cast("str", tables.get("device", "auto")),
                format=cast("int", tables.get("format", FORMAT)),
                resolved=cast("Tables", tables.get("resolved", {})),
            )
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error

    def to_toml(self) -> str:
        """Return the recipe as TOML text, which `from_toml` gives back exactly."""
        text = tomli_w.dumps(self.to_tables())
        return _SHORT_ARRAY.sub(_on_one_line, text)

    @classmethod
    def from_toml(cls, text: str, source: str = "the recipe") -> "Recipe":
        """Read a whole recipe from TOML text.

        Raises:
            ConfigError: when the text is not TOML, is too large or too deeply nested, or is not a
                recipe; the message starts with the source.
        """
        return cls.from_tables(parse_tables(text, source), source)

    def save(self, path: Path) -> None:
        """Write the recipe to a file: a reader finds the old one or the new one, whole.

        Raises:
            ConfigError: when the disk refuses.
        """
        try:
            replace_file(path, self.to_toml().encode())
        except OSError as error:
            raise ConfigError(
                f"{path} could not be written: {error.strerror or error}; free space or choose"
                " another directory"
            ) from error

    @classmethod
    def load(cls, path: Path) -> "Recipe":
        """Read a recipe from a file.

        Raises:
            ConfigError: when the file cannot be read, or as `from_toml` says.
        """
        return cls.from_tables(load_tables(path), str(path))

    def replace(
        self,
        *,
        env: ComponentSpec | None = None,
        actor: ComponentSpec | None = None,
        algorithm: ComponentSpec | None = None,
        storage: ComponentSpec | None = None,
        trainer: Mapping[str, Json] | None = None,
        seed: int | None = None,
        device: str | None = None,
        resolved: Mapping[str, Json] | None = None,
    ) -> "Recipe":
        """Return a copy in which the fields that are given are exchanged.

        Raises:
            ConfigError: when a new value does not fit.
        """
        return dataclasses.replace(
            self,
            env=env or self.env,
            actor=actor or self.actor,
            algorithm=algorithm or self.algorithm,
            storage=storage or self.storage,
            trainer=self.trainer if trainer is None else trainer,
            seed=self.seed if seed is None else seed,
            device=self.device if device is None else device,
            resolved=self.resolved if resolved is None else resolved,
        )

    def merged(self, overrides: Mapping[str, Json]) -> "Recipe":
        """Return a copy in which the overrides win, option by option.

        Args:
            overrides: a part of a recipe in the layout of the file, such as a configuration file
                or the command line's flags. A component that it names differently starts from the
                overrides alone, because the options of one algorithm mean nothing to another.

        Raises:
            ConfigError: when the overrides are no part of a recipe.
        """
        _check_layout(overrides)
        tables = self.to_tables()
        for kind in _COMPONENTS:
            table, old = overrides.get(kind), cast("Tables", tables[kind])
            if isinstance(table, dict) and table.get("name", old["name"]) != old["name"]:
                tables[kind] = {}
        return Recipe.from_tables(_merge(tables, overrides))


def parse_tables(text: str, source: str = "the recipe") -> Tables:
    """Read TOML text that is a recipe or a part of one, such as a user's configuration file.

    Args:
        text: the contents.
        source: what to call it in messages, such as the file's name.

    Returns:
        The tables, for `Recipe.merged` or `Recipe.from_tables`.

    Raises:
        ConfigError: when it is not TOML, is larger than 1 MiB or nested deeper than 8 levels, or
            has an unknown table or top-level key.
    """
    try:
        if len(text) > MAX_BYTES:
            raise ConfigError(f"got {len(text)} characters; expected at most {MAX_BYTES}")
        _check_dotted_keys(text)
        tables = tomllib.loads(text)
        _check_values(tables, "", 0)
        _check_layout(tables)
    except (ValueError, RecursionError) as error:
        reason = error if isinstance(error, ConfigError) else f"not valid TOML ({error})"
        raise ConfigError(f"{source}: {reason}") from error
    return tables


def load_tables(path: Path) -> Tables:
    """Read a file that is a recipe or a part of one.

    Raises:
        ConfigError: when the file cannot be read, or as `parse_tables` says.
    """
    try:
        if not path.is_file():
            kind = "a directory" if path.is_dir() else "missing"
            raise ConfigError(f"{path}: it is {kind}; expected a recipe file in TOML")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        size = os.path.getsize(path)
        raise ConfigError(f"{path}: it has {size} bytes; expected at most {MAX_BYTES}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text ({error.reason})") from error
    return parse_tables(text, str(path))


def _component(kind: str, tables: Mapping[str, Json]) -> ComponentSpec:
    table = cast("Tables", tables.get(kind, {}))
    if "name" not in table:
        raise ConfigError(f'[{kind}] gives no name; add the line name = "..." to its table')
    options = {key: value for key, value in table.items() if key != "name"}
    return ComponentSpec(kind, cast("str", table["name"]), options)


def _check_layout(tables: Mapping[str, Json]) -> None:
    for key, value in tables.items():
        if key not in _KEYS:
            noun = "table" if isinstance(value, dict) else "key"
            raise ConfigError(f"unknown {noun} {key!r}{nearest(str(key), _KEYS)}")
        if key in _TABLES and not isinstance(value, dict):
            raise ConfigError(f"{key}: got {value!r}; expected a table [{key}]")
    _check_format(tables.get("format", FORMAT))


def _check_format(version: Json) -> None:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ConfigError(f"format: got {version!r}; expected {FORMAT}")
    if version > FORMAT:
        raise ConfigError(
            f"format: got {version}, and this rl-core reads up to {FORMAT}; upgrade it: pip install"
            " --upgrade rl-core"
        )


def _check_name(kind: str, name: str) -> None:
    pattern = _ENV_NAME if kind == "env" else _NAME
    if isinstance(name, str) and len(name) <= 200 and pattern.fullmatch(name):
        return
    advice = "a registered name of letters, digits, '-' and '_'"
    if kind == "env":
        advice = "an environment id such as CartPole-v1 or ALE/Pong-v5; import the module that"
        advice += " registers it in your own code, since 'module:id' would let data choose code"
    raise ConfigError(f"[{kind}] name: got {str(name)[:60]!r}; expected {advice}")


def _check_dotted_keys(text: str) -> None:
    # The parser takes time quadratic in the number of dots of a key, hours for a hostile file.
    for part in re.split(r"[=\[\]{},\n]", _TOML_TEXT.sub('""', text)):
        if part.count(".") > MAX_DEPTH:
            raise ConfigError(f"a key has more than {MAX_DEPTH} dots; nest less deeply")


def _check_values(value: object, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{path} is nested deeper than {MAX_DEPTH} levels; flatten it")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text(key, path)
            _check_values(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            _check_values(item, f"{path}[{i}]", depth + 1)
    elif isinstance(value, str):
        _check_text(value, path)
    elif not isinstance(value, int):
        encode({path: value})  # refuses dates and numbers that are not finite
    elif not -(2**63) <= value < 2**63:
        raise ConfigError(f"{path}: got an integer of more than 64 bits; expected a smaller one")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{path}: {text!r} is not valid text ({error.reason})") from error


def _plain_table(options: Mapping[str, Json], kind: str) -> Tables:
    if not isinstance(options, Mapping):
        raise ConfigError(f"{kind}: got {options!r}; expected a mapping of options")
    try:
        table = cast("Tables", encode(options))
    except ConfigError as error:
        raise ConfigError(f"[{kind}] {error}") from error
    _check_values(table, kind, 1)
    return table


def _merge(base: Mapping[str, Json], overrides: Mapping[str, Json]) -> Tables:
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def _on_one_line(match: "re.Match[str]") -> str:
    items = ", ".join(line.strip().removesuffix(",") for line in match[1].rstrip("\n").split("\n"))
    return f"[{items}]" if len(items) <= 80 else match[0]
