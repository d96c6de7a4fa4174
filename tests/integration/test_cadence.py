"""When off-policy algorithms act at random, when they learn, and how often."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from rl_algos_offpolicy import (
    DQN,
    SAC,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
)
from rl_core import Callback, Trainer, TrainerConfig, make, make_gym_vec
from rl_core.env import EnvStep
from rl_core.errors import CheckpointError
from rl_core.schedules import Linear
from rl_core.storage_files import storage_of
from rl_core.testing.scripted import WalkVecEnv
from rl_core.testing.stateful import check_same_state
from rl_core.types import ArrayLike, Json
from rl_storages import ReplayBuffer


class Diary(Callback):
    """Writes down the steps at which updates came, and the gradient steps they took."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []

    def on_update_end(self, trainer: Trainer) -> bool:
        self.entries.append((trainer.total_steps, trainer.algorithm.gradients.count))
        return False


@pytest.mark.parametrize(
    ("num_envs", "options", "expected"),
    [
        # One environment: an update after each step from the sixth on.
        (1, {"update_after": 6}, [(6, 1), (7, 2), (8, 3), (9, 4), (10, 5), (11, 6), (12, 7)]),
        # Two gradient steps after every third transition, random ones included.
        (
            1,
            {"start_steps": 5, "update_after": 3, "update_every": 3, "num_mini_batch": 2},
            [(3, 2), (6, 4), (9, 6), (12, 8)],
        ),
        # Four environments step together, so an update comes after every four transitions.
        (4, {"update_after": 1}, [(4, 1), (8, 2), (12, 3)]),
        (4, {"update_after": 8, "update_every": 4, "num_mini_batch": 4}, [(8, 4), (12, 8)]),
        # Three: six transitions are the fewest that are not less than four.
        (3, {"update_every": 4}, [(6, 1), (12, 2)]),
        # As many gradient steps per transition as with one environment.
        (4, {"update_after": 1, "keep_ratio": True}, [(4, 4), (8, 8), (12, 12)]),
        (1, {"update_after": 11, "keep_ratio": True}, [(11, 1), (12, 2)]),
        (6, {"update_every": 2, "num_mini_batch": 3, "keep_ratio": True}, [(6, 9), (12, 18)]),
        # Six transitions at a time, of which four would be one step: two.
        (3, {"update_every": 4, "keep_ratio": True}, [(6, 2), (12, 4)]),
    ],
)
def test_updates_come_when_they_are_due(
    num_envs: int, options: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    envs = make_gym_vec("Pendulum-v1", num_envs, seed=0)
    torch.manual_seed(0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(hidden_sizes=(4,)),
    )
    usual = {"start_steps": 0, "update_after": 0, "mini_batch_size": 4}
    algorithm = SAC(actor, SACConfig(**{**usual, **options}))  # type: ignore[arg-type]  # whole numbers
    diary = Diary()
    Trainer(
        envs,
        algorithm,
        ReplayBuffer(size=100),
        config=TrainerConfig(compile="off", num_threads=1),
        callbacks=[diary],
        seed=0,
    ).train(total_steps=12)
    envs.close()
    assert diary.entries == expected


class Epsilons(Callback):
    """Writes down how greedy an actor acts."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.seen.append(float(trainer.algorithm.hyper["epsilon"]))


def test_schedules_move_before_there_is_an_update() -> None:
    envs = make_gym_vec("CartPole-v1", 1, seed=0)
    torch.manual_seed(0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(policy="greedy", hidden_sizes=(4,)),
    )
    algorithm = DQN(actor, DQNConfig(epsilon=Linear(1.0, 0.0), update_after=1000))
    epsilons = Epsilons()
    Trainer(
        envs,
        algorithm,
        ReplayBuffer(size=100),
        config=TrainerConfig(compile="off", num_threads=1, log_every=25),
        callbacks=[epsilons],
        seed=0,
    ).train(total_steps=100)
    envs.close()
    # Each step is taken at the progress before it.
    assert epsilons.seen == pytest.approx([0.76, 0.51, 0.26, 0.01])


def test_a_run_without_its_replay_buffer_fills_it_before_it_goes_on(tmp_path: Path) -> None:
    def new() -> tuple[Trainer, Diary]:
        torch.manual_seed(0)
        envs, diary = make_gym_vec("CartPole-v1", 1, seed=0), Diary()
        spaces = envs.single_observation_space, envs.single_action_space
        actor = OffPolicyActor(*spaces, OffPolicyActorConfig(hidden_sizes=(4,), policy="greedy"))
        trainer = Trainer(
            envs,
            DQN(actor, DQNConfig(start_steps=0, update_after=8, mini_batch_size=4)),
            ReplayBuffer(100),
            config=TrainerConfig(compile="off", checkpoint_replay=False),
            seed=0,
            run_dir=tmp_path / "run",
            callbacks=[diary],
        )
        return trainer, diary

    trainer, _ = new()
    trainer.train(20)
    resumed, diary = new()
    checkpoint = resumed.resume()
    assert checkpoint.resume_grade == "weights"
    assert checkpoint.state["storage"] is None
    weights = resumed.algorithm.get_weights().tensors
    for name, tensor in trainer.algorithm.get_weights().tensors.items():
        assert torch.equal(tensor, weights[name])
    assert len(resumed.storage) == 0
    resumed.train(40)
    assert diary.entries[0] == (28, trainer.algorithm.gradients.count + 1)
    with pytest.raises(CheckpointError, match="holds no transitions"):
        storage_of(checkpoint)


def test_a_run_that_is_stopped_between_updates_goes_on_to_the_next_one() -> None:
    class Stopping(WalkVecEnv):
        trainer: Trainer | None = None
        steps_left = 7

        def step(self, action: ArrayLike) -> EnvStep:
            self.steps_left -= 1
            if self.trainer is not None and self.steps_left == 0:
                self.trainer.stop()
            return super().step(action)

    def new() -> tuple[Trainer, Diary]:
        torch.manual_seed(0)
        envs, diary = Stopping(2), Diary()
        spaces = envs.single_observation_space, envs.single_action_space
        actor = OffPolicyActor(*spaces, OffPolicyActorConfig(hidden_sizes=(4,), policy="greedy"))
        config = DQNConfig(
            start_steps=4,
            update_after=4,
            update_every=10,
            epsilon=Linear(1.0, 0.0),
        )
        trainer_config = TrainerConfig(compile="off")
        return Trainer(
            envs,
            DQN(actor, config),
            ReplayBuffer(100),
            config=trainer_config,
            seed=0,
            callbacks=[diary],
        ), diary

    (whole, expected), (stopped, first), (resumed, second) = new(), new(), new()
    whole.train(60)
    assert isinstance(stopped.envs, Stopping)
    stopped.envs.trainer = stopped
    assert stopped.train(60).total_steps == 14
    resumed.load_state_dict(stopped.state_dict())
    resumed.train(60)
    assert first.entries + second.entries == expected.entries
    check_same_state(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac"])
def test_every_algorithm_keeps_its_ratio(name: str) -> None:
    env = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    cadence: dict[str, Json] = {"update_after": 1, "keep_ratio": True, "mini_batch_size": 4}
    options: dict[str, dict[str, Json]] = {
        "env": {"num_envs": 4},
        "actor": {"hidden_sizes": [4]},
        "algorithm": cadence,
        "trainer": {"compile": "off", "num_threads": 1},
    }
    agent = make(name, env, seed=0, options=options)
    diary = Diary()
    agent.train(40, callbacks=[diary])
    agent.close()
    steps = [count - before for (_, before), (_, count) in pairwise(diary.entries)]
    assert set(steps) == {4}
