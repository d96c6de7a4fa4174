"""Config as data: recipes, options, their bounds, and schedules.

A recipe names an environment, an actor, an algorithm and a storage by their registered names, with
plain options. It is the configuration file, the result of the command line, a part of every
checkpoint, and what a worker builds its parts from. A name is only ever looked up among the
installed plug-ins; nothing in a recipe can choose code.
"""

from rl_core.config._types import Json as Json
from rl_core.config._types import field_types as field_types
from rl_core.config._types import is_union as is_union
from rl_core.config._types import type_arguments as type_arguments
from rl_core.config.component import CUSTOM as CUSTOM
from rl_core.config.component import ComponentSpec as ComponentSpec
from rl_core.config.component import Options as Options
from rl_core.config.construction import CONTEXT_PARAMETERS as CONTEXT_PARAMETERS
from rl_core.config.construction import construct as construct
from rl_core.config.construction import options_of as options_of
from rl_core.config.decoding import decode as decode
from rl_core.config.decoding import required_options as required_options
from rl_core.config.encoding import encode as encode
from rl_core.config.layout import FORMAT as FORMAT
from rl_core.config.layout import LENGTHS as LENGTHS
from rl_core.config.layout import RECIPE_DEPTH as RECIPE_DEPTH
from rl_core.config.layout import Tables as Tables
from rl_core.config.layout import check_layout as check_layout
from rl_core.config.layout import check_values as check_values
from rl_core.config.recipe import Recipe as Recipe
from rl_core.config.recipe import merged_tables as merged_tables
from rl_core.config.schedules import Constant as Constant
from rl_core.config.schedules import Cosine as Cosine
from rl_core.config.schedules import Linear as Linear
from rl_core.config.schedules import Piecewise as Piecewise
from rl_core.config.schedules import Schedule as Schedule
from rl_core.config.schedules import Scheduled as Scheduled
from rl_core.config.schedules import as_python as as_python
from rl_core.config.schedules import as_schedule as as_schedule
from rl_core.config.schedules import parse_schedule as parse_schedule
from rl_core.config.validation import Config as Config
from rl_core.config.validation import Count as Count
from rl_core.config.validation import Fraction as Fraction
from rl_core.config.validation import Needs as Needs
from rl_core.config.validation import NonNegative as NonNegative
from rl_core.config.validation import NonNegativeInt as NonNegativeInt
from rl_core.config.validation import Positive as Positive
from rl_core.config.validation import ScheduledFraction as ScheduledFraction
from rl_core.config.validation import ScheduledNonNegative as ScheduledNonNegative
from rl_core.config.validation import ScheduledPositive as ScheduledPositive
from rl_core.config.validation import Widths as Widths
from rl_core.config.validation import Without as Without
from rl_core.config.validation import bounds_of as bounds_of
from rl_core.config.validation import check_argument as check_argument
from rl_core.config.validation import checked_arguments as checked_arguments
from rl_core.config.validation import replaced_options as replaced_options
from rl_core.config.validation import unused_options as unused_options
