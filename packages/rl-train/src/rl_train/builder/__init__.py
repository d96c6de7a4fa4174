"""From names and options to recipes, and from recipes to parts."""

from rl_train.builder.describe import SECTIONS as SECTIONS
from rl_train.builder.describe import changed_option as changed_option
from rl_train.builder.environments import VECTORIZER as VECTORIZER
from rl_train.builder.environments import build_envs as build_envs
from rl_train.builder.environments import build_test_envs as build_test_envs
from rl_train.builder.environments import inspect_env as inspect_env
from rl_train.builder.parts import Parts as Parts
from rl_train.builder.parts import build as build
from rl_train.builder.parts import build_algorithm as build_algorithm
from rl_train.builder.parts import build_trainer as build_trainer
from rl_train.builder.parts import resolve_device as resolve_device
from rl_train.builder.recipes import Sections as Sections
from rl_train.builder.recipes import component_of as component_of
from rl_train.builder.recipes import compose as compose
from rl_train.builder.recipes import load_algorithm as load_algorithm
