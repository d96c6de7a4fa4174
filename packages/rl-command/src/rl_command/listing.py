"""The command ``rl list``."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TextIO

from rich.console import Console
from rich.table import Table

from rl_command.options import command_options
from rl_command.parser import Command, parse
from rl_core import plugins
from rl_core.config import decode
from rl_core.plugins import PluginInfo
from rl_train.builder import VECTORIZER

_HEADINGS = ("kind", "name", "distribution", "version", "description")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListArguments:
    """Arguments of ``rl list``.

    Attributes:
        kind: List only components of this kind.
        json: Print one JSON object.
    """

    kind: str | None = None
    json: bool = False


def list_plugins(words: Sequence[str]) -> int:
    """List the installed components without importing them.

    Args:
        words: the arguments after ``rl list``.

    Returns:
        The exit status.
    """
    options = command_options(ListArguments, positional={"kind": "|".join(plugins.KINDS)})
    summary = "List the components of the installed packages; Gymnasium ids work as well."
    arguments = decode(ListArguments, parse(Command("rl list", summary, options), words))
    kinds = plugins.KINDS if arguments.kind is None else (arguments.kind,)
    found = {kind: plugins.available(kind) for kind in kinds}
    if arguments.json:
        tables = {
            kind: {name: _facts(info) for name, info in infos.items()}
            for kind, infos in found.items()
        }
        print(json.dumps(tables, indent=2))
        return 0
    rows = [
        (kind.removesuffix("s"), name, info.distribution, info.version, _described(info))
        for kind, infos in found.items()
        for name, info in infos.items()
    ]
    if rows:
        _print_rows(rows, sys.stdout)
    else:
        print(f"no {' or '.join(kinds)} are installed")
    return 0


def _facts(info: PluginInfo) -> Mapping[str, object]:
    return {
        "distribution": info.distribution,
        "version": info.version,
        "description": _summary(info),
        "entry_point": info.entry_point,
        "allowed": info.allowed,
        "rivals": list(info.rivals),
    }


def _described(info: PluginInfo) -> str:
    if info.rivals:
        return f"unusable: {', '.join(info.rivals)} registers the same name"
    return _summary(info) if info.allowed else "not allowed by RL_PLUGINS"


def _summary(info: PluginInfo) -> str:
    if (info.kind, info.name) == ("envs", VECTORIZER):
        return "Makes the environments that Gymnasium registers, such as CartPole-v1"
    try:
        return str(metadata.metadata(info.distribution)["Summary"] or "")
    except (metadata.PackageNotFoundError, KeyError):
        return ""


def _print_rows(rows: Sequence[tuple[str, ...]], stream: TextIO) -> None:
    if stream.isatty():
        table = Table(*_HEADINGS, box=None)
        for row in rows:
            table.add_row(*row)
        Console(file=stream).print(table)
        return
    widths = [max(len(row[c]) for row in (_HEADINGS, *rows)) for c in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip(), file=stream)
