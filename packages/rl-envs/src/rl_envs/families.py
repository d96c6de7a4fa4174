"""Families of environments: which extra brings them, who registers them, how they are prepared."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec as find_module

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rl_core.errors import MissingExtraError, in_brief
from rl_envs.atari import prepare_atari


@dataclass(frozen=True)
class EnvFamily:
    """One family of environments.

    Attributes:
        name: of the family.
        extra: of ``rl-envs``, which installs it; None if Gymnasium brings it.
        module: what has to be importable.
        registers: the module whose import registers the ids; None if Gymnasium does.
        entry_point: prefix, or prefixes, of the entry points of the registered ids.
        ids: matches ids that are not registered yet, with or without a version; none by default.
        kwargs: default arguments of the environments.
        not_native: why the vectorized form of the ids is not taken; empty where it is.
        prepare: wraps a training or a testing environment; the second argument says whether it is
            for testing.
        excluded: arguments of the environments that would contradict what prepares them, and why.
        conflicts: versions of packages that are known not to go together.
    """

    name: str
    extra: str | None
    module: str
    entry_point: str | tuple[str, ...]
    ids: str = r"(?!)"
    registers: str | None = None
    kwargs: Mapping[str, object] = field(default_factory=dict)
    not_native: str = ""
    prepare: Callable[[gymnasium.Env, bool], gymnasium.Env] | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple["Conflict", ...] = ()

    def require(self, env_id: str) -> None:
        """Import what registers the ids.

        Raises:
            MissingExtraError: if the simulator is not installed, or cannot be imported.
        """
        if find_module(self.module) is None:
            raise MissingExtraError(
                f"{env_id} needs {self.name}, which is not installed: {self.install_line}"
            )
        if self.registers is None or self.registers in sys.modules:
            return
        try:
            gymnasium.register_envs(importlib.import_module(self.registers))
        except Exception as error:
            raise MissingExtraError(
                f"{env_id} needs {self.name}, which cannot be imported ({in_brief(error)})"
                f"{self.known_conflict() or f': {self.install_line}'}"
            ) from error

    @property
    def install_line(self) -> str:
        """How to install the family from a clone of the toolbox."""
        return f'pip install "packages/rl-envs[{self.extra}]" (in a clone of the toolbox)'

    def known_conflict(self) -> str | None:
        """Name installed versions that are known not to go together, and those that do."""
        return next((found for one in self.conflicts if (found := one.describe())), None)


@dataclass(frozen=True)
class Conflict:
    """Two distributions that do not work together in some versions.

    Attributes:
        distribution: the one that fails.
        other: the one it fails with.
        below: the first version of the other one that it fails with.
        mend: what to install.
    """

    distribution: str
    other: str
    below: tuple[int, int]
    mend: str

    def describe(self) -> str | None:
        """Say that the installed versions do not go together; None if they do."""
        try:
            found, other = version(self.distribution), version(self.other)
        except PackageNotFoundError:
            return None
        if tuple(int(part) for part in re.findall(r"\d+", other)[:2]) < self.below:
            return None
        return (
            f"; {self.distribution} {found} does not work with {self.other} {other}: "
            f"pip install {self.mend}"
        )


FAMILIES = (
    EnvFamily("classic control", None, "gymnasium", "gymnasium.envs.classic_control"),
    EnvFamily("Box2D", "box2d", "Box2D", "gymnasium.envs.box2d"),
    EnvFamily(
        "MuJoCo",
        "mujoco",
        "mujoco",
        ("gymnasium.envs.mujoco", "rl_envs.tasks.locomotion"),
    ),
    EnvFamily(
        "Atari",
        "atari",
        "ale_py",
        "ale_py.env",
        r"ALE/|\w+NoFrameskip(-v|$)",
        registers="ale_py",
        kwargs={"frameskip": 1},
        not_native="ale-py's begins a new game after each lost life",
        prepare=prepare_atari,
        excluded={
            "frameskip": "an action always plays 4 frames",
            "max_episode_steps": "it would count frames; give max_num_frames_per_episode instead",
        },
    ),
    EnvFamily(
        "PyBullet",
        "bullet",
        "pybullet_envs_gymnasium",
        "pybullet_envs_gymnasium",
        r"\w+BulletEnv(-v|$)",
        registers="pybullet_envs_gymnasium",
    ),
    EnvFamily(
        "Gymnasium-Robotics",
        "robotics",
        "gymnasium_robotics",
        "gymnasium_robotics",
        "Fetch|HandReach|HandManipulate|AntMaze|PointMaze|AdroitHand|FrankaKitchen",
        registers="gymnasium_robotics",
        conflicts=(Conflict("gymnasium-robotics", "mujoco", (3, 7), "'mujoco>=3.3,<3.7'"),),
    ),
    EnvFamily(
        "MiniGrid", "minigrid", "minigrid", "minigrid", "MiniGrid-|BabyAI-", registers="minigrid"
    ),
    EnvFamily(
        "Meta-World",
        "metaworld",
        "metaworld",
        "rl_envs.tasks.meta_world",
        "MetaWorldML1(-v|$)",
        registers="rl_envs.tasks.meta_world",
    ),
    EnvFamily(
        "dm_control",
        "dm-control",
        "dm_control",
        "shimmy",
        "dm_control/",
        registers="shimmy",
    ),
)
"""All families, in the order of the documentation."""

ENVPOOL_ATARI: Mapping[bool, Mapping[str, object]] = {
    False: {"repeat_action_probability": 0.25, "episodic_life": True, "reward_clip": True},
    True: {"repeat_action_probability": 0.25},
}
"""Default arguments of EnvPool's games of Atari, by whether they are for testing."""

REPLACED_IDS = {
    "RoboschoolAnt": "AntBulletEnv-v0",
    "RoboschoolHalfCheetah": "HalfCheetahBulletEnv-v0",
    "RoboschoolHopper": "HopperBulletEnv-v0",
    "RoboschoolHumanoid": "HumanoidBulletEnv-v0",
    "RoboschoolHumanoidFlagrun": "HumanoidFlagrunBulletEnv-v0",
    "RoboschoolHumanoidFlagrunHarder": "HumanoidFlagrunHarderBulletEnv-v0",
    "RoboschoolInvertedDoublePendulum": "InvertedDoublePendulumBulletEnv-v0",
    "RoboschoolInvertedPendulum": "InvertedPendulumBulletEnv-v0",
    "RoboschoolInvertedPendulumSwingup": "InvertedPendulumSwingupBulletEnv-v0",
    "RoboschoolReacher": "ReacherBulletEnv-v0",
    "RoboschoolWalker2d": "Walker2DBulletEnv-v0",
}
"""By name without version: ids of packages that are no longer maintained, and their successors."""


def family_of_id(env_id: str) -> EnvFamily | None:
    """Return the family of an id that need not be registered yet."""
    return next((one for one in FAMILIES if re.match(one.ids, env_id)), None)


def family_of_spec(spec: EnvSpec | None) -> EnvFamily | None:
    """Return the family of a registered environment."""
    entry_point = str(spec.entry_point) if spec is not None else ""
    return next((one for one in FAMILIES if entry_point.startswith(one.entry_point)), None)


def registering_installed() -> Iterator[None]:
    """Import what is installed and registers ids, one family in each step of the iteration."""
    for family in FAMILIES:
        module = family.registers
        if module is None or module in sys.modules or find_module(family.module) is None:
            continue
        try:
            family.require(family.name)
        except MissingExtraError:
            continue
        yield
