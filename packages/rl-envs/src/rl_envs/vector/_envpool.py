"""EnvPool's vector environments, which are stepped by threads of C++."""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any, TypeGuard

from gymnasium.vector import AutoresetMode, VectorEnv

from rl_core.errors import ConfigError, MissingExtraError, closest, in_brief


class EnvPoolVectorEnv(VectorEnv):
    """An EnvPool environment that can be seeded again, as other vector environments can.

    EnvPool takes its seed when it is built, so a `reset` with a seed builds the pool anew.

    Args:
        pool: what ``envpool.make(..., env_type="gymnasium")`` returned.
        name: its id, if known.

    Raises:
        ConfigError: if it is a pool of another type, or steps only some environments at a time.
    """

    def __init__(self, pool: Any, name: str | None = None) -> None:
        if isinstance(pool, importlib.import_module("dm_env").Environment):
            raise ConfigError(
                f"{type(pool).__name__} has the interface of dm_env; build it with "
                "env_type='gymnasium'"
            )
        config = pool.spec.config
        if config.batch_size not in (0, config.num_envs):
            raise ConfigError(
                f"{type(pool).__name__} steps batch_size={config.batch_size} of its "
                f"{config.num_envs} environments at a time; build it without batch_size"
            )
        self._pool = pool
        self.name = name or type(pool).__name__.removesuffix("GymnasiumEnvPool")
        self.max_episode_steps = int(config.max_episode_steps)
        self.num_envs = int(config.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        with warnings.catch_warnings():  # of bounds that are rounded to float32
            warnings.simplefilter("ignore")
            self.single_observation_space = pool.spec.gymnasium_observation_space
            self.single_action_space = pool.spec.gymnasium_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments; with a seed they are built anew."""
        if seed is not None:
            spec = self._pool.spec
            config = {**spec.config._asdict(), "seed": seed}
            self._pool.close()
            self._pool = type(self._pool)(type(spec)(type(spec).gen_config(**config)))
        observation, info = self._pool.reset()
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments."""
        returned: tuple[Any, Any, Any, Any, dict[str, Any]] = self._pool.step(actions)
        return returned

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        self._pool.close()


def is_envpool(envs: object) -> TypeGuard[VectorEnv]:
    """Whether an object was made by EnvPool, in any of its forms."""
    return any(cls.__module__.startswith("envpool.") for cls in type(envs).__mro__)


def make_envpool(
    env_id: str,
    num_envs: int,
    kwargs: Mapping[str, object],
    seed: int | None,
    atari_kwargs: Mapping[str, object],
) -> EnvPoolVectorEnv:
    """Make environments by EnvPool's id; Atari's may have the prefix ``ALE/``.

    Args:
        env_id: EnvPool's id.
        num_envs: ``B``.
        kwargs: arguments for the environments.
        seed: of the environments; None leaves it to EnvPool.
        atari_kwargs: further ones for games of Atari.

    Raises:
        MissingExtraError: if EnvPool is not installed.
        ConfigError: if it does not have the environment, or not with these arguments.
    """
    try:
        envpool = importlib.import_module("envpool")
    except Exception as error:  # also of an EnvPool whose files are not all there
        raise MissingExtraError(
            'vectorization="envpool" needs EnvPool: pip install "packages/rl-envs[envpool]" (in a '
            f"clone of the toolbox) ({in_brief(error)})"
        ) from error
    specs = envpool.registration.registry.specs
    atari = [game for game, spec in specs.items() if spec[0] == "envpool.atari"]
    name, known = env_id.removeprefix("ALE/"), atari if env_id.startswith("ALE/") else list(specs)
    if name not in known:
        meant = closest(name, known)
        hint = "" if meant is None else f"; did you mean '{meant}'?"
        raise ConfigError(
            f"EnvPool has no environment '{env_id}'{hint}; leave vectorization='envpool' out, or "
            "see envpool.list_all_envs()"
        )
    if name in atari:
        kwargs = {**atari_kwargs, **kwargs}
    given = {} if seed is None else {"seed": seed}
    try:
        pool = envpool.make(name, env_type="gymnasium", num_envs=num_envs, **given, **kwargs)
    except ImportError as error:  # of what its simulators need of the system
        raise MissingExtraError(f"EnvPool cannot make '{env_id}': {in_brief(error)}") from error
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"EnvPool cannot make '{env_id}' with {dict(kwargs)}: {in_brief(error)}"
        ) from error
    return EnvPoolVectorEnv(pool, env_id)
