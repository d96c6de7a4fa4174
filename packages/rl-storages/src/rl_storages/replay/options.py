"""What the options of a replay buffer mean, and whether they can be met."""

from pathlib import Path

import torch

from rl_core.config import check_count
from rl_core.env import GoalFunctions
from rl_core.env.goals import GoalFunction
from rl_core.errors import ConfigError, DeviceError
from rl_storages.config import HindsightConfig, PrioritizedConfig, RecentConfig, SequenceConfig

_MAX_FRAMES = 255
"""Frames in a stack, at most: their depths are bytes."""

_CONFIGS: dict[str, tuple[type, str]] = {
    "prioritized": (PrioritizedConfig, "PrioritizedConfig()"),
    "recent": (RecentConfig, "RecentConfig()"),
    "hindsight": (HindsightConfig, "HindsightConfig(strategy='future')"),
    "sequences": (SequenceConfig, "SequenceConfig(length=40)"),
}
"""The class of each option that is one, and how one is written."""


def check_counts(size: object, n_step: object, frame_stack: object) -> None:
    """Refuse what is no number of transitions, steps or frames.

    Raises:
        ConfigError: unless all are whole numbers in range.
    """
    for name, value in (("size", size), ("n_step", n_step)):
        check_count(f"storage.{name}", value)
    if frame_stack is None:
        return
    is_count = isinstance(frame_stack, int) and not isinstance(frame_stack, bool)
    if not is_count or not 2 <= frame_stack <= _MAX_FRAMES:  # type: ignore[operator]  # a number
        raise ConfigError(
            f"storage.frame_stack must be from 2 to {_MAX_FRAMES}, got {frame_stack!r}; leave it "
            "out where observations are no stacks of frames"
        )


def check_unstacked(unstacked: object, frame_stack: int | None) -> None:
    """Refuse what names no entries of observations, or has no effect.

    Raises:
        ConfigError: saying what is expected.
    """
    is_list = isinstance(unstacked, tuple | list)
    if not is_list or not all(isinstance(name, str) for name in unstacked):  # type: ignore[attr-defined]  # a list
        raise ConfigError(
            f"storage.unstacked must be a list of entries of a dict of observations, got "
            f"{unstacked!r}"
        )
    if unstacked and frame_stack is None:
        raise ConfigError(
            "storage.unstacked names entries that are no stacks of frames, but there are none; set "
            "storage.frame_stack too, or leave unstacked out"
        )


def check_configs(**options: object) -> None:
    """Refuse what is neither None nor a config of the option's class.

    Args:
        options: ``prioritized``, ``recent``, ``hindsight`` and ``sequences``.

    Raises:
        ConfigError: saying how it is written.
    """
    for name, value in options.items():
        config, example = _CONFIGS[name]
        if value is not None and not isinstance(value, config):
            raise ConfigError(
                f"storage.{name} must be a {config.__name__} or None, got {value!r}; write "
                f"{name}={example}, or leave it out"
            )


def check_her_function(her_function: object) -> None:
    """Refuse what rewards no goals.

    Raises:
        ConfigError: unless it can be called, is `GoalFunctions`, or None.
    """
    if not (
        her_function is None or callable(her_function) or isinstance(her_function, GoalFunctions)
    ):
        raise ConfigError(
            "storage.her_function must be a function of achieved goals, desired goals and an info, "
            f"GoalFunctions, or None, got {her_function!r}; give one, or leave it out to ask the "
            "environment"
        )


def check_directory_name(name: object) -> None:
    """Refuse what names no directory.

    Raises:
        ConfigError: unless it is a text or None.
    """
    if name is not None and not isinstance(name, str):
        raise ConfigError(
            f"storage.mmap_dir must be the path of a directory as text, or None, got {name!r}; "
            "write mmap_dir='/tmp', or leave it out"
        )


def not_allocated() -> ConfigError:
    """Say that there is no room yet."""
    return ConfigError("the replay buffer is not allocated yet; a Trainer does it")


def no_batches(num_mini_batch: int | None, mini_batch_size: int | None) -> ConfigError:
    """Say that one of the numbers is missing, or below 1."""
    name, value = "mini_batch_size", mini_batch_size
    if not num_mini_batch or num_mini_batch < 1:
        name, value = "num_mini_batch", num_mini_batch
    return ConfigError(
        f"{name} must be at least 1, got {value}: a replay buffer has no epochs, it draws "
        "num_mini_batch batches of mini_batch_size transitions"
    )


def check_combination(
    size: int,
    prioritized: PrioritizedConfig | None,
    recent: RecentConfig | None,
    sequences: SequenceConfig | None,
    hindsight: HindsightConfig | None,
    her_function: GoalFunction | GoalFunctions | None,
) -> None:
    """Refuse options that would mean nothing beside or without others.

    Args:
        size: transitions over all environments.
        prioritized: how to draw by priority.
        recent: how to draw from the newest.
        sequences: which sequences to draw.
        hindsight: how to relabel goals.
        her_function: how these are rewarded.

    Raises:
        ConfigError: naming both.
    """
    if recent is not None and recent.cmin >= size:
        raise ConfigError(
            f"storage.recent.cmin={recent.cmin} is not below storage.size={size}, so that every "
            "batch would be drawn from the whole buffer; set storage.recent.cmin to less, such as "
            f"{max(size // 10, 1)}, or storage.size to more, or leave storage.recent out"
        )
    if sequences is None and prioritized is not None and prioritized.eta is not None:
        raise ConfigError(
            f"storage.prioritized.eta={prioritized.eta} is about sequences, and there are none; "
            "set storage.sequences too, or leave eta out"
        )
    if her_function is not None and hindsight is None:
        raise ConfigError(
            "her_function rewards relabelled goals, but none are; give storage.hindsight too"
        )


def rows_per_env(
    size: int,
    num_envs: int,
    n_step: int,
    sequences: SequenceConfig | None,
    frame_stack: int | None,
) -> int:
    """Return how many rows each environment needs for its share of the transitions.

    Raises:
        ConfigError: when there would be no room for one window in each.
    """
    num_rows = -(-size // num_envs) + 1
    if num_rows < n_step + 2:
        raise ConfigError(
            f"storage.size={size} is too small for {num_envs} environments and "
            f"n_step={n_step}; it must be at least {n_step * num_envs + 1}"
        )
    older_frames = 0 if frame_stack is None else frame_stack - 1
    return num_rows + older_frames + (0 if sequences is None else sequences.length - 1)


def checked_device(name: str | None, default: torch.device) -> torch.device:
    """Return where the data is kept.

    Raises:
        DeviceError: when it is not there.
    """
    if name is None:
        return default
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise DeviceError(
            f"storage.data_device={name!r} is not there: {error}; use 'cpu'"
        ) from error
    return device


def checked_directory(name: str | None, device: torch.device) -> Path | None:
    """Return where files are made that hold the data, if it is to be kept in files.

    Raises:
        ConfigError: when there is no such directory, or the data is to be on another device.
    """
    if name is None:
        return None
    directory = Path(name)
    if not directory.is_dir():
        raise ConfigError(
            f"storage.mmap_dir: {directory.absolute()} is not an existing directory; make it "
            "first (a run resumes into an empty one, as its checkpoints hold the data)"
        )
    if device.type != "cpu":
        raise ConfigError(
            f"storage.mmap_dir keeps data in files, but it is to be on {device}; set "
            "storage.data_device to 'cpu'"
        )
    return directory
