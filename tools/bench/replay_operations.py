"""What the replay benchmark measures, and what it fills buffers with."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from gymnasium import spaces

SYSTEMS: Mapping[str, str] = {
    "ours": "ours",
    "sb3": "Stable-Baselines3",
    "cpprb": "cpprb",
}
"""What is measured, in the order of a round; a title for each."""

BATCH_SIZE = 256

GAMMA = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Transitions of one environment.

    Attributes:
        title: for the table.
        observation_space: of what is stored.
        action_space: likewise.
        episode_length: steps after which episodes are truncated.
        frame_stack: frames in an observation, of which each is a new one; None has no frames.
        allowed_bytes: of a million transitions, in our buffer; None is not limited.
    """

    title: str
    observation_space: spaces.Space[object]
    action_space: spaces.Space[object]
    episode_length: int = 1000
    frame_stack: int | None = None
    allowed_bytes: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """Something whose speed is compared.

    Attributes:
        title: for the table.
        systems: which of `SYSTEMS` can do it.
        data: of the transitions, a name in `DATA`.
        inserts: insert one transition.
        draws: draw a batch of 256.
        n_step: rewards in a transition.
        is_prioritized: draw by priority, and learn as many priorities.
        is_relabeled: draw four of five transitions with a goal that was achieved later.
    """

    title: str
    systems: tuple[str, ...]
    data: str = "halfcheetah"
    inserts: bool = False
    draws: bool = True
    n_step: int = 1
    is_prioritized: bool = False
    is_relabeled: bool = False


def _real(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


DATA: Mapping[str, Data] = {
    "halfcheetah": Data(
        title="HalfCheetah: 17 + 6 float32",
        observation_space=_real(17),
        action_space=spaces.Box(-1.0, 1.0, (6,), np.float32),
        allowed_bytes=110e6,
    ),
    "atari": Data(
        title="Atari: 4 frames of 84x84 bytes",
        observation_space=spaces.Box(0, 255, (4, 84, 84), np.uint8),
        action_space=spaces.Discrete(18),
        frame_stack=4,
        allowed_bytes=7.2e9,
    ),
    "fetchreach": Data(
        title="FetchReach: 10 + 3 + 3 + 4 float32",
        observation_space=spaces.Dict(
            {"observation": _real(10), "achieved_goal": _real(3), "desired_goal": _real(3)}
        ),
        action_space=spaces.Box(-1.0, 1.0, (4,), np.float32),
        episode_length=50,
    ),
}
"""By name."""

OPERATIONS: Mapping[str, Operation] = {
    "uniform": Operation(title="draw 256", systems=("ours", "sb3")),
    "n-step": Operation(title="draw 256, three steps", systems=("ours", "sb3"), n_step=3),
    "prioritized": Operation(
        title="draw 256 by priority, and learn 256 priorities",
        systems=("ours", "cpprb"),
        is_prioritized=True,
    ),
    "prioritized-insert": Operation(
        title="insert one, draw 256 by priority, and learn 256 priorities",
        systems=("ours", "cpprb"),
        inserts=True,
        is_prioritized=True,
    ),
    "insert": Operation(
        title="insert one", systems=("ours", "sb3", "cpprb"), inserts=True, draws=False
    ),
    "hindsight": Operation(
        title="draw 256 of FetchReach's size with goals in hindsight (`future`, k = 4)",
        systems=("ours", "sb3"),
        data="fetchreach",
        is_relabeled=True,
    ),
}
"""By the name that the command line takes."""

MEMORY: Mapping[str, tuple[str, ...]] = {"halfcheetah": ("ours", "sb3"), "atari": ("ours", "sb3")}
"""Systems whose memory is compared, by the name of the transitions."""
