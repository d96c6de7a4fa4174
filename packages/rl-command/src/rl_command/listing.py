"""The command ``rl list``."""

import ast
import contextlib
import importlib.util
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import cast

from rl_command.errors import UsageError
from rl_command.options import command_options, first_sentence
from rl_command.parser import Command, parse
from rl_core import plugins
from rl_core.config import Config
from rl_core.errors import nearest
from rl_core.plugins import PluginInfo

_PRESETS = "presets"
_KINDS = (*plugins.KINDS, _PRESETS)
_HEADINGS = ("kind", "name", "distribution", "version", "description")


@dataclass(frozen=True, kw_only=True)
class ListArguments(Config):
    """Options of ``rl list``.

    Attributes:
        json: Print one JSON object.
        imports: Module to import first, which registers environments; may be repeated.
    """

    json: bool = False
    imports: tuple[str, ...] = ()


def list_plugins(words: Sequence[str]) -> int:
    """List the installed components without importing them.

    Args:
        words: the arguments after ``rl list``.

    Returns:
        The exit status.
    """
    options = command_options(ListArguments)
    summary = "List the components of the installed packages; Gymnasium ids work as well."
    names = "|".join(_KINDS)
    given = parse(Command("rl list", summary, options, (f"{names}...",)), words)
    arguments = given.into(ListArguments)
    if arguments.imports:
        from rl_command.train_arguments import import_modules  # brings PyTorch

        import_modules(given.tables)
    kinds = [_known_kind(each) for each in given.names]
    found = {
        kind: _presets()
        if kind == _PRESETS
        else {name: _facts(info) for name, info in plugins.available(kind).items()}
        for kind in kinds or plugins.KINDS
    }
    if "envs" in found:
        found["envs"] |= {i.name: _facts(i) for i in _own_environments(arguments.imports)}
        found["envs"] = dict(sorted(found["envs"].items()))
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    rows = [
        (kind[:-1], name, str(facts["distribution"]), str(facts["version"]), _described(facts))
        for kind, components in found.items()
        for name, facts in components.items()
    ]
    if rows:
        _print_rows(rows)
    else:
        print(f"no {' or '.join(kinds or plugins.KINDS)} are installed")
    return 0


def _known_kind(name: str) -> str:
    """Return one of the kinds for its name or its singular."""
    plural = name if name in _KINDS else f"{name}s"
    if plural not in _KINDS:
        raise UsageError(f"there are no components of kind '{name}'{nearest(name, _KINDS)}")
    return plural


def _presets() -> dict[str, dict[str, object]]:
    """Return the presets of all algorithms, as ``ALGO/ENV`` or ``ALGO/ENV@NAME``."""
    found: dict[str, dict[str, object]] = {}
    for algorithm, info in plugins.available("algorithm").items():
        if info.allowed and not info.rivals:
            facts, folder = _facts(info), _package(info.entry_point) / "presets" / algorithm
            for path in sorted(folder.rglob("*.toml")):
                preset = path.relative_to(folder).with_suffix("").as_posix()
                env, _, name = preset.partition("@")
                command = f"rl train {algorithm} {env} --preset {name}".rstrip()
                found[f"{algorithm}/{preset}"] = {**facts, "description": command}
    return found


def _facts(info: PluginInfo) -> dict[str, object]:
    summary = _description(*info.entry_point.split(":", 1))
    if (info.kind, info.name) == ("envs", "gymnasium"):
        summary = "Makes the environments that Gymnasium registers, such as CartPole-v1."
    with contextlib.suppress(metadata.PackageNotFoundError, KeyError):
        summary = summary or metadata.metadata(info.distribution)["Summary"] or ""
    return {
        "distribution": info.distribution,
        "version": info.version,
        "description": summary,
        "entry_point": info.entry_point,
        "allowed": info.allowed,
        "rivals": list(info.rivals),
    }


def _own_environments(imported: Sequence[str]) -> Iterator[PluginInfo]:
    """Yield the ids that rl_envs and the user's modules register with Gymnasium."""
    ours = tomllib.loads((_package("rl_envs") / "envs.toml").read_text(encoding="utf-8"))
    for env_id, how in ours.items():
        version = metadata.version("rl-envs")
        yield PluginInfo("envs", env_id, "rl-envs", version, how["entry_point"])
    if not imported:
        return
    import gymnasium

    packages = {module.partition(".")[0] for module in imported}
    for spec in gymnasium.registry.values():
        where = spec.entry_point or spec.vector_entry_point
        name = getattr(where, "__qualname__", "")
        text = where if isinstance(where, str) else f"{where.__module__}:{name}"
        module = text.partition(":")[0]
        if module.partition(".")[0] in packages:
            yield PluginInfo("envs", spec.id, module, "-", text)


def _described(facts: Mapping[str, object]) -> str:
    if rivals := cast("list[str]", facts["rivals"]):
        return f"unusable: {', '.join(rivals)} registers the same name"
    return str(facts["description"] or "") if facts["allowed"] else "not allowed by RL_PLUGINS"


def _description(module: str, name: str) -> str:
    """Read the first sentence of a class's docstring in its source, which is not imported."""
    source = _source(module)
    try:
        body = [] if source is None else ast.parse(source.read_bytes()).body
    except (SyntaxError, ValueError, OSError):  # which its import will tell
        return ""
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and statement.name == name:
            return first_sentence(ast.get_docstring(statement) or "")
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            for alias in statement.names:
                if (alias.asname or alias.name) == name:
                    return _description(statement.module, alias.name)
    return ""


def _source(module: str) -> Path | None:
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    base = Path(spec.origin).parent.joinpath(*rest)
    files = (Path(spec.origin),) if not rest else (base / "__init__.py", base.with_suffix(".py"))
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


def _package(entry_point: str) -> Path:
    """Return the folder of the package that an entry point is in."""
    source = _source(entry_point.partition(":")[0].partition(".")[0])
    return Path() if source is None else source.parent


def _print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[c]) for row in (_HEADINGS, *rows)) for c in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
