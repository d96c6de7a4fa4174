"""Demonstrations: from data sets and trajectories into a storage, against numbers worked out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_core.batch import Trajectory
from rl_core.errors import ConfigError, DataError, SpaceError
from rl_core.nn.distributions import make_head
from rl_core.spaces import HybridSpace, Space, action_problem
from rl_core.storage import StorageSpec, TensorSpec
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.replay import ReferenceReplayStorage
from rl_testing.storages import seeded
from rl_testing.toy import ToyActor
from rl_train.builder.saved_envs import space_problem
from rl_train.demonstrations import (
    dataset_trajectories,
    fill_storage,
    insert_trajectories,
    read_demonstrations,
)

SEEN = spaces.Box(-10.0, 10.0, (2,), np.float32)
CHOSEN = spaces.Discrete(3, start=5)
HYBRID = HybridSpace(SEEN, spaces.MultiDiscrete([2]))
SPEC = StorageSpec(
    TensorSpec((2,), torch.float32), TensorSpec((), torch.int64), 1, {}, {}, torch.device("cpu")
)


class Learner(ToyActor):
    """Counts categories from 0, like the actors that learn."""

    def from_env_action(self, env_action: Tensor) -> Tensor:
        return env_action.long() - 5


@dataclass
class Episode:
    id: int
    observations: Any
    actions: Any
    rewards: Any
    terminations: Any
    truncations: Any


@dataclass
class Dataset:
    episodes: Sequence[Episode]
    observation_space: Space = field(default_factory=lambda: SEEN)
    action_space: Space = field(default_factory=lambda: CHOSEN)

    def iterate_episodes(self) -> Iterable[Episode]:
        return self.episodes


def _episode(number: int, length: int, *, ends: bool = True) -> Episode:
    """Show ``[number, step]`` before each step, choose ``5 + step % 3``, earn the step."""
    steps = np.arange(length + 1)
    last = np.arange(length) == length - 1
    return Episode(
        number,
        np.stack([np.full(length + 1, number), steps], 1).astype(np.float64),
        5 + steps[:-1] % 3,
        steps[:-1].astype(np.float64),
        last & ends,
        np.zeros(length, np.bool_),
    )


def _learner() -> Learner:
    return Learner(SEEN, CHOSEN)


def _storage(num_envs: int = 1, size: int = 60, n_step: int = 1) -> ReferenceReplayStorage:
    storage = ReferenceReplayStorage(size, n_step)
    storage.allocate(replace(SPEC, num_envs=num_envs), seeded())
    return storage


@pytest.mark.parametrize("num_envs", [1, 2, 3, 5])
def test_a_data_set_becomes_transitions(num_envs: int) -> None:
    lengths = [3, 1, 4, 2]
    dataset = Dataset([_episode(i, n, ends=i != 2) for i, n in enumerate(lengths)])
    storage = _storage(num_envs)
    assert fill_storage(storage, dataset, _learner()) == 10
    found = sorted(
        (
            *row["observation"].tolist(),
            *row["next_observation"].tolist(),
            int(row["action"]),
            float(row["reward"]),
            bool(row["terminated"]),
        )
        for row in storage.transitions()
    )
    assert found == [
        (i, t, i, t + 1, t % 3, t, t == n - 1 and i != 2)
        for i, n in enumerate(lengths)
        for t in range(n)
    ]


def test_windows_do_not_lead_from_one_episode_into_the_next() -> None:
    storage = _storage(n_step=3)
    fill_storage(storage, Dataset([_episode(0, 2, ends=False), _episode(1, 2)]), _learner())
    assert [row["num_steps"].item() for row in storage.transitions()] == [2, 1, 2, 1]
    # The truncated one bootstraps from its own last observation.
    assert storage.transitions()[0]["next_observation"].tolist() == [0.0, 2.0]
    assert not storage.transitions()[1]["terminated"]


def test_what_is_collected_afterwards_joins_on() -> None:
    storage, other = _storage(2), _storage(2)
    fill_storage(storage, Dataset([_episode(0, 3), _episode(1, 5)]), _learner())
    before = len(storage.transitions())
    insert_trajectories(storage, storage.trajectories())
    assert len(storage.transitions()) == 2 * before
    insert_trajectories(other, storage.trajectories())
    assert len(other.transitions()) == 2 * before


def test_bounds_count_for_actions_alone() -> None:
    narrow, wide = spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-2.0, 2.0, (1,))
    assert space_problem(narrow, wide) is None
    assert space_problem(spaces.Box(-1.0, 1.0, (1,), np.float64), narrow, bounds=True) is None
    found = space_problem(narrow, wide, bounds=True)
    assert found is not None
    assert "expected Box(-2.0, 2.0" in found


@pytest.mark.parametrize(
    ("recorded", "expected", "problem"),
    [
        (SEEN, SEEN, None),
        (spaces.Box(-1.0, 1.0, (2,), np.float64), SEEN, None),
        (spaces.Box(-1.0, 1.0, (3,), np.float32), SEEN, r"is Box\(.*\(3,\).*expected Box"),
        (spaces.Box(0, 255, (2,), np.uint8), SEEN, "expected Box"),
        (HYBRID, HYBRID, None),
        (HYBRID, SEEN, r"is HybridSpace\(.*expected Box"),
        (spaces.Discrete(3), CHOSEN, r"is Discrete\(3\); expected Discrete\(3, start=5\)"),
        (spaces.Dict({"a": SEEN}), SEEN, "is Dict"),
        (spaces.Dict({"a": SEEN}), spaces.Dict({"b": SEEN}), r"the entries \['a'\]; expected \["),
        (
            spaces.Dict({"a": CHOSEN}),
            spaces.Dict({"a": spaces.Discrete(3)}),
            "has 'a', which is Discrete",
        ),
    ],
)
def test_spaces_are_compared(recorded: Space, expected: Space, problem: str | None) -> None:
    found = space_problem(recorded, expected)
    if problem is None:
        assert found is None
        return
    assert found is not None
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(found)


def test_a_data_set_of_another_environment_is_refused() -> None:
    other = Dataset([_episode(0, 3)], observation_space=spaces.Box(-1.0, 1.0, (3,), np.float32))
    with pytest.raises(SpaceError, match="the data set does not fit the environment: its obser"):
        dataset_trajectories(other, _learner())
    other = Dataset([_episode(0, 3)], action_space=spaces.Discrete(4))
    with pytest.raises(SpaceError, match=r"its action space is Discrete\(4\); expected Discrete"):
        dataset_trajectories(other, _learner())


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("observations", np.zeros((3, 2)), r"episode 7: the observation has shape \(3, 2\)"),
        ("observations", np.full((4, 2), np.nan), r"observations at step 0 are \[nan nan\]"),
        ("observations", {"a": np.zeros((4, 2))}, "episode 7"),
        ("actions", np.zeros((3, 1), np.int64), r"the actions have shape \(3, 1\) and dtype int64"),
        ("actions", np.array([5.0, 6.0, 7.0]), "dtype float64; expected"),
        ("actions", np.array([5, 6, 8]), r"the action of step 2 is 8; expected one of Discrete"),
        ("rewards", np.array([0.0, np.inf, 0.0]), "rewards at step 1 are inf; expected finite"),
        ("terminations", np.zeros(2, np.bool_), r"terminations have shape \(2,\)"),
        ("truncations", np.array([False, True, False]), "at step 1, but continues to step 2"),
    ],
)
def test_an_episode_that_is_not_what_its_spaces_say_is_refused(
    name: str, value: object, problem: str
) -> None:
    episode = _episode(7, 3)
    setattr(episode, name, value)
    with pytest.raises(DataError, match=problem):
        list(dataset_trajectories(Dataset([episode]), _learner()))


def test_actions_beside_the_bounds_are_found() -> None:
    box = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, np.inf]), dtype=np.float64)
    assert action_problem(box, np.array([[2.0 + 1e-6, 1e9], [-2.0, 0.0]]), 2, "step") is None
    problem = action_problem(box, np.array([[2.0, 1.0], [2.1, 1.0]]), 2, "step")
    assert problem is not None
    assert problem.startswith("the action of step 1 is [2.1 1. ]; expected one of Box")
    assert action_problem(box, np.array([[2.0, -0.1]]), 1, "step") is not None
    wide = spaces.Box(-1e3, 1e3, (1,), np.float64)
    assert action_problem(wide, np.array([[1000.1]]), 1, "step") is None
    assert action_problem(wide, np.array([[1000.3]]), 1, "step") is not None
    assert action_problem(spaces.MultiDiscrete([3, 2]), np.array([[2, 2]]), 1, "step") is not None
    assert action_problem(spaces.MultiBinary(2), np.array([[1, 0]]), 1, "step") is None
    assert action_problem(spaces.MultiBinary(2), np.array([[1, 2]]), 1, "step") is not None


class Scaled(ToyActor):
    """Has actions in [-1, 1], like the actors of SAC and TD3."""

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        super().__init__(observation_space, action_space)
        self.policy = make_head(action_space, self.encoder.out_features, squash=True)

    def from_env_action(self, env_action: Tensor) -> Tensor:
        return self.policy.from_env_action(env_action)


def _trajectory(**fields: object) -> Any:
    """Return one of 3 steps, with some fields replaced."""
    whole: dict[str, Any] = {
        "observation": torch.zeros(4, 2),
        "action": torch.tensor([0, 1, 2]),
        "reward": torch.zeros(3),
        "terminated": True,
        **fields,
    }
    return Trajectory(**whole)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (None, "got NoneType; expected a Trajectory"),
        (_trajectory(reward=torch.zeros(0)), "it has no step; leave it out"),
        (_trajectory(reward=torch.zeros(2)), r"observation has shape \(4, 2\); expected \(3, 2\)"),
        (_trajectory(reward=torch.zeros(3, 1)), r"rewards have shape \(3, 1\) .* of shape \(3,\)"),
        (
            _trajectory(reward=torch.tensor([0.0, np.nan, 0.0])),
            "the rewards at step 1 are nan; exp",
        ),
        (
            _trajectory(reward=np.array([0.0, 0.0, 1e300])),
            r"rewards at step 2 are 1e\+300; expected finite numbers in torch.float32",
        ),
        (
            _trajectory(observation=torch.zeros(3, 2)),
            r"\(3, 2\); expected \(4, 2\) for 3 rewards",
        ),
        (_trajectory(observation=torch.zeros(4, 5)), r"observation has shape \(4, 5\)"),
        (
            _trajectory(observation=torch.full((4, 2), np.inf)),
            r"step 0 are \[inf inf\]; expected fin",
        ),
        (
            _trajectory(observation={"a": torch.zeros(4, 2)}),
            r"are entries \['a'\]; expected one array",
        ),
        (_trajectory(action=torch.zeros(2).long()), r"actions have shape \(2,\) .* for 3 steps"),
        (_trajectory(action=torch.zeros(3)), "dtype float32; expected whole numbers"),
        (
            _trajectory(action=torch.tensor([0, 7, 0])),
            r"is 12; expected .*with actor.from_env_action",
        ),
        (
            _trajectory(action=torch.tensor([0, 0, -1])),
            "the action of step 2 is 4; expected one of",
        ),
    ],
)
def test_trajectories_that_do_not_fit_are_refused(wrong: Any, problem: str) -> None:
    storage = _storage()
    with pytest.raises(DataError, match=f"the demonstrations, trajectory 1.*{problem}"):
        fill_storage(storage, [_trajectory(), wrong], _learner())


def test_actions_in_the_environments_units_are_refused_where_the_actor_scales() -> None:
    torques = spaces.Box(-2.0, 2.0, (1,), np.float32)
    scaled, plain = Scaled(SEEN, torques), ToyActor(SEEN, torques)
    given = _trajectory(action=torch.tensor([[0.5], [-1.5], [1.0]]))
    with pytest.raises(
        DataError, match=r"action of step 1 is \[-1.5\]; expected the actor's own, in \[-1"
    ):
        list(read_demonstrations([given], scaled))
    own = scaled.from_env_action(given.action)
    assert own.tolist() == [[0.25], [-0.75], [0.5]]
    (taken,) = read_demonstrations([replace(given, action=own)], scaled)
    assert torch.equal(taken.action, own)
    (taken,) = read_demonstrations([given], plain)
    assert torch.equal(taken.action, given.action)


def test_integers_that_would_wrap_around_are_refused() -> None:
    actor = ToyActor(spaces.Box(-128, 127, (2,), np.int8), CHOSEN)
    fitting = np.array([[0, 0], [127, -128], [0, 1], [0, 0]])
    given = _trajectory(observation=fitting, action=torch.zeros(3, dtype=torch.int64))
    (taken,) = read_demonstrations([given], actor)
    assert isinstance(taken.observation, Tensor)
    assert taken.observation[1].tolist() == [127, -128]
    wide = np.array([[0, 0], [0, 0], [200, 1], [0, 0]])
    with pytest.raises(DataError, match=r"observations at step 2 are \[200   1\]; expected what"):
        list(read_demonstrations([replace(given, observation=wide)], actor))


def test_arrays_and_wider_numbers_get_the_dtypes_of_storages() -> None:
    given = _trajectory(
        observation=np.ones((4, 2)), action=np.array([2, 1, 0], np.int32), reward=np.ones(3)
    )
    (taken,) = read_demonstrations([given], _learner())
    assert isinstance(taken.observation, Tensor)
    dtypes = taken.observation.dtype, taken.action.dtype, taken.reward.dtype
    assert dtypes == (torch.float32, torch.int64, torch.float32)
    assert taken.action.tolist() == [2, 1, 0]


def test_what_cannot_be_filled_is_refused() -> None:
    dataset, learner = Dataset([_episode(0, 8)]), _learner()
    with pytest.raises(ConfigError, match="need a replay storage"):
        fill_storage(ReferenceRolloutStorage(), dataset, learner)
    with pytest.raises(ConfigError, match="not allocated yet"):
        fill_storage(ReferenceReplayStorage(), dataset, learner)
    with pytest.raises(ConfigError, match="8 demonstrated transitions do not fit"):
        fill_storage(_storage(size=5), dataset, learner)
    with pytest.raises(DataError, match="hold no transition"):
        fill_storage(_storage(), Dataset([]), learner)
    with pytest.raises(ConfigError, match="got int; expected a directory"):
        fill_storage(_storage(), 3, learner)  # type: ignore[arg-type]  # wrong on purpose
    storage = ReferenceReplayStorage()
    storage.allocate(replace(SPEC, extras={"surprise": TensorSpec((), torch.float32)}), seeded())
    with pytest.raises(ConfigError, match=r"have no \['surprise'\]"):
        fill_storage(storage, dataset, learner)
