"""Environments of a recipe: by name and options, or from what the user gives in Python."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import cast

from rl_core import plugins
from rl_core.algorithm import EnvSpec
from rl_core.config import CUSTOM, ComponentSpec, Recipe, construct, decode, options_of
from rl_core.env import VecEnv
from rl_core.errors import ConfigError
from rl_core.seeding import spawn_seed
from rl_core.types import Json
from rl_envs import (
    AnyEnv,
    as_vec_env,
    find_spec,
    is_built,
    is_vector_class,
    registered_env,
    with_version,
)
from rl_train.builder.components import as_table
from rl_train.trainer import TrainerConfig

VECTORIZER = "gymnasium"
"""The environment plug-in that turns ids and functions into vector environments."""


def build_envs(
    spec: ComponentSpec,
    seed: int | None,
    given: AnyEnv | None = None,
    *,
    num_test_episodes: int | None = None,
) -> VecEnv:
    """Make the environments of a recipe.

    Args:
        spec: a Gymnasium id or a registered name, with options.
        seed: seed of all of them; None leaves it to them.
        given: taken in place of the name; a class or function is built with the spec's options.
        num_test_episodes: prepare them for evaluations of so many episodes, without environments
            that would play none; None prepares them for training.

    Raises:
        ConfigError: for an unknown id or option, naming the nearest one.
    """
    if given is not None and is_built(given):
        return as_vec_env(given)
    num_envs = spec.get("num_envs")
    if num_test_episodes is not None and isinstance(num_envs, int):
        fewer = {**spec.kwargs, "num_envs": min(num_envs, num_test_episodes)}
        spec = replace(spec, kwargs=fewer)
    env = registered_env(spec.name if given is None else given)
    if is_vector_class(env):
        return construct(env, {"seed": seed}, decode(options_of(env), spec.kwargs, "env"))
    kwargs = {**spec.kwargs, "testing": True} if num_test_episodes else spec.kwargs
    vectorizer = cast("Callable[..., VecEnv]", plugins.load("env", VECTORIZER))
    return vectorizer(env, seed=seed, **_vectorizer_options(env, kwargs))


def build_test_envs(
    recipe: Recipe, given: AnyEnv | None = None, num_episodes: int | None = None
) -> VecEnv:
    """Make separate environments to evaluate in; see `build_envs`.

    Args:
        recipe: of the run.
        given: taken in place of its environments' name.
        num_episodes: of the evaluation; None takes the most that the recipe's evaluations have.
    """
    if num_episodes is None:
        config = decode(TrainerConfig, recipe.trainer, "trainer")
        num_episodes = max(config.num_test_episodes, config.final_test_episodes or 1)
    seed = spawn_seed(recipe.seed, "test")
    return build_envs(recipe.env, seed, given, num_test_episodes=num_episodes)


def describe_env(env: AnyEnv, kwargs: Mapping[str, Json]) -> ComponentSpec:
    """Check the options of environments, add their defaults, and name them for a recipe.

    What has no registered name is called ``custom``, and an id gets its version.

    Raises:
        ConfigError: for an unknown option, one that means nothing to environments that are built,
            or an unknown id without a version.
    """
    if is_built(env):
        unused = [name for name in kwargs if name != "num_envs"]
        if unused:
            raise ConfigError(
                f"env.{unused[0]}: has no effect on an environment that is built; leave it out, or "
                "give the class of the environment or a function that builds one"
            )
        num_envs = as_vec_env(env, cast("int | None", kwargs.get("num_envs"))).num_envs
        return ComponentSpec("env", CUSTOM, {"num_envs": num_envs})
    source = registered_env(env)
    name = env if isinstance(env, str) else CUSTOM
    if is_vector_class(source):
        return ComponentSpec("env", name, as_table(decode(options_of(source), kwargs, "env")))
    if isinstance(source, str) and kwargs.get("vectorization") != "envpool":
        name = with_version(source)
    return ComponentSpec("env", name, as_table(_vectorizer_options(source, kwargs)))


def inspect_env(spec: ComponentSpec, given: AnyEnv | None = None) -> EnvSpec:
    """Read an environment's spaces by making one and closing it, unless it is built already."""
    if "num_envs" in spec.kwargs:  # one is enough, and starts sooner
        spec = replace(spec, kwargs={**spec.kwargs, "num_envs": 1})
    envs = build_envs(spec, None, given)
    try:
        name = envs.spec_id if spec.is_custom else spec.name
        spaces = envs.single_observation_space, envs.single_action_space
        return EnvSpec(name, *spaces, max_episode_steps=envs.max_episode_steps)
    finally:
        if given is None or not is_built(given):
            envs.close()


def env_component(env: AnyEnv) -> Callable[..., object]:
    """Return what makes environments of a registered name, a Gymnasium id, a class or function."""
    source = env if is_built(env) else registered_env(env)
    return source if is_vector_class(source) else plugins.load("env", VECTORIZER)


def _vectorizer_options(env: AnyEnv, kwargs: Mapping[str, Json]) -> dict[str, object]:
    """Check the options of whatever vectorizes, and add its defaults."""
    if isinstance(env, str) and kwargs.get("vectorization") != "envpool":
        find_spec(env)  # where a plug-in is missing, its options are unknown too
    if "env" in kwargs:
        raise ConfigError("env.env: unknown option; give another id or function as the environment")
    options = decode(options_of(plugins.load("env", VECTORIZER)), {**kwargs, "env": CUSTOM}, "env")
    assert is_dataclass(options)
    return {
        field.name: getattr(options, field.name) for field in fields(options) if field.name != "env"
    }
