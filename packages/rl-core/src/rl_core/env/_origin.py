"""What a Gymnasium vector environment tells about itself."""

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
    spec, class_name = base.spec, type(base).__name__
    if isinstance(base, SyncVectorEnv):
        first = base.envs[0]
        class_name = type(first.unwrapped).__name__
        spec = first.spec or spec
    if spec is None:
        return class_name, None
    limit = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
    return spec.id, limit
