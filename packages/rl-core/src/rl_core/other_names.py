"""What options and algorithms of other libraries are called here, for suggestions in errors."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast


@cache
def other_names() -> Mapping[str, tuple[str, ...]]:
    """Return our names by a name in another library, the likeliest first."""
    theirs = {ours: names for ours, names in _read().items() if ours != "variants"}
    return {
        other: tuple(ours for ours, names in theirs.items() if other in names.split())
        for other in " ".join(theirs.values()).split()
    }


def variants() -> Mapping[str, str]:
    """Return which of our algorithms, with which option, another library's is, by its name."""
    return cast("dict[str, str]", _read()["variants"])


@cache
def _read() -> dict[str, Any]:
    return tomllib.loads((files("rl_core") / "other_names.toml").read_text(encoding="utf-8"))
