"""Recipes: what a run is built from, as data.

A recipe names an environment, an actor, an algorithm and a storage by their registered names, with
plain options. It is the configuration file, the result of the command line, a part of every
checkpoint, and what a worker builds its parts from. A name is only ever looked up among the
installed plug-ins; nothing in a recipe can choose code.
"""

from rl_core.recipe._checks import MAX_DEPTH as MAX_DEPTH
from rl_core.recipe._checks import check_layout as check_layout
from rl_core.recipe._checks import check_values as check_values
from rl_core.recipe.component import CUSTOM as CUSTOM
from rl_core.recipe.component import ComponentSpec as ComponentSpec
from rl_core.recipe.layout import FORMAT as FORMAT
from rl_core.recipe.layout import LENGTHS as LENGTHS
from rl_core.recipe.layout import Tables as Tables
from rl_core.recipe.options import Options as Options
from rl_core.recipe.recipe import Recipe as Recipe
from rl_core.recipe.recipe import merged_tables as merged_tables
