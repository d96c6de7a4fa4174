"""Whether the environment of an earlier run is like this one, by spaces, name and options."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gymnasium import spaces

from rl_core.algorithm import EnvSpec
from rl_core.config import ComponentSpec, Recipe
from rl_core.errors import ConfigError, RLError
from rl_core.spaces import HybridSpace, Space, named_leaves, tensor_dtype
from rl_core.types import Json
from rl_train.checkpoint import checkpoints_of, list_checkpoints
from rl_train.recipe_files import load_recipe

_VIEWS: Mapping[str, Json] = {
    "mask_velocity": False,
    "rescale_observation": False,
    "stack_size": 1,
    "time_feature": False,
    "rescale_action": False,
    "action_mask": False,
}
"""Options that change observations and actions, with the values that do not."""

REWARD_OPTIONS: Mapping[str, Json] = {"training_reward_scale": 1.0, "training_reward_clip": "none"}
"""Options that change the rewards of training, likewise."""


def changing_options(env: ComponentSpec, *, rewards: bool = True) -> dict[str, Json]:
    """Return the options that change observations, actions or rewards.

    Args:
        env: environment of a recipe.
        rewards: whether those that change rewards count.
    """
    same = {**_VIEWS, **(REWARD_OPTIONS if rewards else {})}
    return {key: env.kwargs[key] for key in same if env.kwargs.get(key, same[key]) != same[key]}


def saved_recipe(directory: str | Path) -> Recipe | None:
    """Read the recipe of a run, its folder ``best``, or a checkpoint; None where there is none.

    Raises:
        ConfigError: when it cannot be read.
    """
    directory = Path(directory)
    for path in (directory, *reversed(list_checkpoints(checkpoints_of(directory)))):
        if (path / "recipe.toml").is_file():
            return load_recipe(path / "recipe.toml")
    return None


def warn_of_other_env(directory: str | Path, env: ComponentSpec) -> None:
    """Warn when an earlier run, see `saved_recipe`, is on an environment that is not this one.

    Another name, or options that change observations or actions differently, make it another one.
    """
    recipe = saved_recipe(directory)
    if recipe is None or recipe.env.is_custom or env.is_custom:
        return
    theirs, ours = _in_words(recipe.env), _in_words(env)
    if theirs != ours:
        warnings.warn(
            f"{directory} is of {theirs}, and this run is on {ours}; leave it out unless you mean "
            "to go from one to the other",
            stacklevel=2,
        )


def check_demonstrated(directory: str | Path, env: ComponentSpec) -> None:
    """Refuse demonstrations whose observations, actions or rewards are changed otherwise.

    Data without a recipe are as the environment gives them.

    Raises:
        ConfigError: naming the options that differ.
    """
    recipe = saved_recipe(directory)
    for key, default in {**_VIEWS, **REWARD_OPTIONS}.items():
        theirs = default if recipe is None else recipe.env.kwargs.get(key, default)
        ours = env.kwargs.get(key, default)
        if theirs != ours:
            raise ConfigError(
                f"trainer.demonstrations: {directory} was recorded with env.{key}={theirs}, but "
                f"this run has {ours}, and both are learned from together; set it to {theirs}, or "
                "leave the demonstrations out"
            )


def _in_words(env: ComponentSpec) -> str:
    options = changing_options(env, rewards=False)
    return " with ".join([env.name, *(f"{key}={value}" for key, value in options.items())])


def run_problem(recipe: Recipe, observation_space: Space, action_space: Space) -> str | None:
    """Say why a run's environment has other spaces than these; None if it has the same.

    Also None where that environment is the user's own or cannot be made here, so that nobody
    knows its spaces.
    """
    env = _made_env(recipe.env)
    if env is None:
        return None
    for what, recorded, expected in (
        ("observation", env.observation_space, observation_space),
        ("action", env.action_space, action_space),
    ):
        problem = space_problem(recorded, expected, bounds=True)
        if problem is not None:
            return (
                f"trained on {recipe.env.name}, does not fit the environment: its {what} space "
                f"{problem}; choose a run on an environment like this one"
            )
    return None


def _made_env(env: ComponentSpec) -> EnvSpec | None:
    from rl_train.builder.environments import inspect_env  # which imports the trainer, and so this

    if env.is_custom:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is not stepped
            return inspect_env(env)
    except RLError:
        return None


def space_problem(recorded: Space, expected: Space, *, bounds: bool = False) -> str | None:
    """Return how a recorded space differs from the environment's, or None if it does not.

    The width of floating-point numbers may differ.

    Args:
        recorded: space of the data.
        expected: space of the environment.
        bounds: whether to compare the bounds of Box spaces, by which they may be scaled.
    """
    if HybridSpace in (type(recorded), type(expected)):  # which has no leaves
        return None if recorded == expected else f"is {recorded}; expected {expected}"
    got, wanted = named_leaves(recorded), named_leaves(expected)
    if ("" in got) != ("" in wanted):
        return f"is {recorded}; expected {expected}"
    if set(got) != set(wanted):
        return f"has the entries {sorted(got)}; expected {sorted(wanted)}"
    for key, leaf in wanted.items():
        if not _is_same(got[key], leaf, bounds):
            begin = f"has '{key}', which " if key else ""
            return f"{begin}is {got[key]}; expected {leaf}"
    return None


def _is_same(got: Space, wanted: Space, bounds: bool) -> bool:
    if not (isinstance(got, spaces.Box) and isinstance(wanted, spaces.Box)):
        return got == wanted
    if got.shape != wanted.shape or tensor_dtype(got) != tensor_dtype(wanted):
        return False
    return not bounds or (np.allclose(got.low, wanted.low) and np.allclose(got.high, wanted.high))
