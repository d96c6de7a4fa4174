"""TOML as text: what is checked before it is parsed, and how it is written."""

import re
import tomllib

from rl_core.errors import ConfigError
from rl_core.recipe._checks import MAX_DEPTH
from rl_core.recipe.layout import Tables

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOML_TEXT = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' r"'''.*?'{3,5}|" + _STRING + r"|'[^'\n]*'|#[^\n]*", re.DOTALL
)
_SHORT_ARRAY = re.compile(rf"\[\n((?: +(?:[-+.\w]+|{_STRING}),\n)+) *\]")


def parse_toml(text: str) -> Tables:
    """Read TOML text in which no key has more dots than tables may be deep.

    Raises:
        ConfigError: when one has.
        ValueError: when it is not TOML; the message says at which line and column.
        RecursionError: when it is nested too deeply for the parser.
    """
    # The parser takes time quadratic in the number of dots of a key, hours for a hostile file.
    for part in re.split(r"[=\[\]{},\n]", _TOML_TEXT.sub('""', text)):
        if part.count(".") > MAX_DEPTH:
            raise ConfigError(f"a key has more than {MAX_DEPTH} dots; nest less deeply")
    return tomllib.loads(text)


def with_short_arrays(text: str) -> str:
    """Write each array of plain numbers or short texts on one line where it fits."""
    return _SHORT_ARRAY.sub(_on_one_line, text)


def _on_one_line(match: "re.Match[str]") -> str:
    items = ", ".join(line.strip().removesuffix(",") for line in match[1].rstrip("\n").split("\n"))
    return f"[{items}]" if len(items) <= 80 else match[0]
