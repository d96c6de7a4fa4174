"""JSON as text, read as strictly as TOML."""

import json
import re

from rl_core.types import Json

_TOKEN = re.compile(r'[{}]|("(?:[^"\\]|\\.)*")(\s*:)?')


def parse_json(text: str) -> Json:
    """Read JSON text, in which no table may have a key twice.

    Raises:
        ValueError: when it is not JSON; the message says at which line and column.
        RecursionError: when it is nested too deeply for the parser.
    """
    value: Json = json.loads(text)
    _check_keys(text)
    return value


def _check_keys(text: str) -> None:
    """Refuse tables of valid JSON in which a key stands twice, of which Python takes the last."""
    tables: list[set[str]] = []
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            tables.append(set())
        elif token[0] == "}":
            tables.pop()
        elif token[2]:
            key = json.loads(token[1])
            if key in tables[-1]:
                raise json.JSONDecodeError(f"The key {key!r} is there twice", text, token.start())
            tables[-1].add(key)
