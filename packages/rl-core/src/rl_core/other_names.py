"""What options and algorithms of other libraries are called here, for suggestions in errors."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def other_names() -> Mapping[str, tuple[str, ...]]:
    """Return our names by a name in another library, the likeliest first."""
    theirs = tomllib.loads((files("rl_core") / "other_names.toml").read_text(encoding="utf-8"))
    return {
        other: tuple(ours for ours, names in theirs.items() if other in names.split())
        for other in " ".join(theirs.values()).split()
    }
