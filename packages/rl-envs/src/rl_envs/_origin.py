"""What a Gymnasium vector environment tells about itself."""

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from rl_core.errors import ConfigError, nearest


def autoreset_mode(envs: VectorEnv) -> AutoresetMode:
    """Return how a vector environment resets ended rows; next-step when it does not say.

    Raises:
        ConfigError: when it says something unknown.
    """
    declared = envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
    try:
        return AutoresetMode(declared)
    except ValueError as error:
        known = [mode.value for mode in AutoresetMode]
        raise ConfigError(
            f"{envs} declares autoreset_mode={declared!r} in its metadata{nearest('', known)}"
        ) from error


def describe(envs: VectorEnv) -> tuple[str, int | None]:
    """Return the id, or the class name, of the environments and their time limit if known."""
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv):
        first = base.envs[0]
        return describe_spec(first.spec or base.spec, first.unwrapped)
    return describe_spec(base.spec, base)


def describe_spec(spec: EnvSpec | None, env: object) -> tuple[str, int | None]:
    """Return the id and time limit of a specification; without one, the environment's class."""
    if spec is None:
        return type(env).__name__, None
    limit = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
    return spec.id, limit
