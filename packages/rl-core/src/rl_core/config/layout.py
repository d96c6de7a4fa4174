"""The layout of a recipe's file."""

from typing import TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
"""What a JSON document can hold."""

FORMAT = 1
"""The version of the layout; a recipe of a later version is refused."""

Tables: TypeAlias = dict[str, Json]
"""A recipe, or a part of one, in the layout of its file."""

LENGTHS = ("total_steps", "total_episodes", "total_updates")
"""What the length of a run can be counted in, among what was resolved."""
