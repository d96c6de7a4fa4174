"""Tables of options whose entries are attributes too."""

from typing import Any

from rl_core.config.layout import Json
from rl_core.errors import nearest


class Options(dict[str, Json]):
    """Plain options; ``options.optimizer.eps`` reads what ``options["optimizer"]["eps"]`` does.

    An option with the name of a dictionary's method, such as ``items``, is read by its key alone.

    Args:
        table: plain data; tables in it become `Options` too.
        path: what errors call it.
    """

    def __init__(self, table: dict[str, Json], path: str) -> None:
        super().__init__(
            {
                name: Options(value, f"{path}.{name}") if isinstance(value, dict) else value
                for name, value in table.items()
            }
        )
        self._path = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of Python's own protocols, such as that of copying
            raise AttributeError(name)
        if name not in self:
            raise AttributeError(f"[{self._path}] gives no option {name!r}{nearest(name, self)}")
        return self[name]
