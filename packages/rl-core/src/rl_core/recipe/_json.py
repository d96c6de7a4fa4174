"""JSON as text, read as strictly as TOML."""

import json

from rl_core.types import Json


def parse_json(text: str) -> Json:
    """Read JSON text, in which no table may have a key twice.

    Raises:
        ValueError: when it is not JSON; the message says at which line and column, or which key.
        RecursionError: when it is nested too deeply for the parser.
    """
    value: Json = json.loads(text, object_pairs_hook=_table)
    return value


def _table(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    table: dict[str, Json] = {}
    for key, value in pairs:
        if key in table:  # Python would take the last one
            raise ValueError(f"The key {key!r} is there twice")
        table[key] = value
    return table
