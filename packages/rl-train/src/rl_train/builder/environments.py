"""Environments by the names and options of a recipe."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeGuard, cast

from rl_core import plugins
from rl_core.algorithm import EnvSpec
from rl_core.config import ComponentSpec, Recipe, construct, decode, options_of
from rl_core.env import VecEnv
from rl_core.seeding import spawn_seed
from rl_core.types import Json
from rl_train.builder.components import as_table

VECTORIZER = "gymnasium"
"""The environment plug-in that turns ids and functions into vector environments."""


def build_envs(spec: ComponentSpec, seed: int | None, *, testing: bool = False) -> VecEnv:
    """Make the environments of a recipe.

    Args:
        spec: a Gymnasium id or a registered name, with options.
        seed: seed of all of them; None leaves it to them.
        testing: prepare them for testing, where their preset makes a difference.

    Raises:
        ConfigError: for an unknown id or option, naming the nearest one.
    """
    maker = env_component(spec.name)
    if _is_vectorised(maker):
        return construct(maker, {"seed": seed}, decode(options_of(maker), spec.kwargs, "env"))
    vectorizer = cast("Callable[..., VecEnv]", maker)
    kwargs = {**spec.kwargs, "testing": True} if testing else spec.kwargs
    options = _vectorizer_options(spec.name, kwargs)
    return vectorizer(_registered(spec.name) or spec.name, seed=seed, **options)


def build_test_envs(recipe: Recipe) -> VecEnv:
    """Make separate environments to evaluate in."""
    return build_envs(recipe.env, spawn_seed(recipe.seed, "test"), testing=True)


def inspect_env(spec: ComponentSpec) -> EnvSpec:
    """Read an environment's spaces by making one and closing it."""
    envs = build_envs(spec, None)
    try:
        return EnvSpec(spec.name, envs.single_observation_space, envs.single_action_space)
    finally:
        envs.close()


def env_component(name: str) -> Callable[..., object]:
    """Return what makes the environments of a registered name or Gymnasium id."""
    registered = _registered(name)
    return registered if _is_vectorised(registered) else plugins.load("env", VECTORIZER)


def complete_env_options(name: str, kwargs: Mapping[str, Json]) -> dict[str, Json]:
    """Check an environment's options and add the defaults of whatever makes it."""
    maker = env_component(name)
    if _is_vectorised(maker):
        return as_table(decode(options_of(maker), kwargs, "env"))
    return as_table(_vectorizer_options(name, kwargs))


def _registered(name: str) -> Callable[..., object] | None:
    """Return a registered environment, or None for a Gymnasium id."""
    if name == VECTORIZER or name not in plugins.available("env"):
        return None
    return plugins.load("env", name)


def _is_vectorised(maker: Callable[..., object] | None) -> TypeGuard[type[VecEnv]]:
    return isinstance(maker, type) and issubclass(maker, VecEnv)


def _vectorizer_options(name: str, kwargs: Mapping[str, Json]) -> dict[str, object]:
    """Check the options of whatever vectorises, and add its defaults."""
    options = decode(options_of(plugins.load("env", VECTORIZER)), {**kwargs, "env": name}, "env")
    assert is_dataclass(options)
    return {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if field.name not in ("env", "seed")
    }
