"""Strict conversion between typed options and plain JSON or TOML data.

`decode` accepts exactly what a dataclass declares and names the path of everything else; `encode`
is its inverse. `options_of` finds the options that a component takes, and `construct` builds the
component from them, so that a recipe, a command line and Python code share one set of types.

TOML has no null: ``None`` is written as the text ``"none"`` and read back wherever the type admits
``None``.
"""

from rl_core.codec._component_options import CONTEXT_PARAMETERS as CONTEXT_PARAMETERS
from rl_core.codec._component_options import construct as construct
from rl_core.codec._component_options import options_of as options_of
from rl_core.codec._type_forms import admits_none as admits_none
from rl_core.codec._type_forms import field_types as field_types
from rl_core.codec._type_forms import is_union as is_union
from rl_core.codec.decoding import decode as decode
from rl_core.codec.encoding import encode as encode
