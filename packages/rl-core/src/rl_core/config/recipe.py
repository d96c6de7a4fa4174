"""All that a run is built from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from rl_core.config._types import Json
from rl_core.config.component import ComponentSpec, Options
from rl_core.config.layout import (
    COMPONENTS,
    FORMAT,
    Tables,
    check_format,
    check_layout,
    check_values,
    plain_table,
)
from rl_core.config.validation import NonNegativeInt, check_argument
from rl_core.errors import ConfigError


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
        for kind in COMPONENTS:
            spec = getattr(self, kind)
            if not isinstance(spec, ComponentSpec) or spec.kind != kind:
                raise ConfigError(f"{kind}: got {spec!r}; expected ComponentSpec({kind!r}, ...)")
        object.__setattr__(self, "seed", check_argument("seed", self.seed, NonNegativeInt))
        if not isinstance(self.device, str) or not self.device:
            raise ConfigError(f"device: got {self.device!r}; expected 'auto', 'cpu' or 'cuda'")
        check_format(self.format)
        check_values(self.device, "device", 1)
        check_values(self.seed, "seed", 1)
        for kind in ("trainer", "resolved"):
            table = plain_table(getattr(self, kind), kind)
            object.__setattr__(self, kind, Options(table, kind))

    def __str__(self) -> str:
        """List all options, one in a line."""
        lines: list[str] = []
        for section, table in self.to_tables().items():
            options = table if isinstance(table, dict) else {"": table}
            lines += [f"{section}.{k}".rstrip(".") + f" = {v!r}" for k, v in options.items()]
        return "\n".join(lines)

    def to_tables(self) -> Tables:
        """Return a new tree in the layout of the file."""
        tables: Tables = {"format": self.format, "seed": self.seed, "device": self.device}
        for kind in COMPONENTS:
            spec: ComponentSpec = getattr(self, kind)
            tables[kind] = {"name": spec.name, **plain_table(spec.kwargs, kind)}
        for kind, options in (("trainer", self.trainer), ("resolved", self.resolved)):
            if options:
                tables[kind] = plain_table(options, kind)
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
            check_layout(tables)
            specs = {kind: _component(kind, tables) for kind in COMPONENTS}
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

    def merged(self, overrides: Mapping[str, Json]) -> "Recipe":
        """Return a copy in which the overrides win, option by option.

        Args:
            overrides: a part of a recipe in the layout of the file, such as a configuration file
                or the command line's flags. A component, or an optimizer, that it names
                differently starts from the overrides alone, because the options of one mean
                nothing to another.

        Raises:
            ConfigError: when the overrides are not part of a recipe.
        """
        check_layout(overrides)
        return Recipe.from_tables(merged_tables(self.to_tables(), overrides))


def _component(kind: str, tables: Mapping[str, Json]) -> ComponentSpec:
    table = cast("Tables", tables.get(kind, {}))
    if "name" not in table:
        raise ConfigError(f'[{kind}] gives no name; add the line name = "..." to its table')
    options = {key: value for key, value in table.items() if key != "name"}
    return ComponentSpec(kind, cast("str", table["name"]), options)


def merged_tables(base: Mapping[str, Json], overrides: Mapping[str, Json]) -> Tables:
    """Return tables in which the overrides win, option by option.

    A table that names another component than the old one stands alone, because the options of one
    mean nothing to another.
    """
    if "name" in base and "name" in overrides and base["name"] != overrides["name"]:
        return dict(overrides)
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merged_tables(old, value)
        else:
            merged[key] = value
    return merged
