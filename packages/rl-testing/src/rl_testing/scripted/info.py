"""What environments tell besides."""

from typing import TypeAlias

Info: TypeAlias = dict[str, object]
"""What an environment tells besides."""
