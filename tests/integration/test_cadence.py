"""When off-policy algorithms act at random, when they learn, and how often."""

import io
from collections.abc import Callable, Mapping
from itertools import count, pairwise
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode

from rl_algos_offpolicy import DQN, SAC, DQNConfig, OffPolicyActor, OffPolicyActorConfig, SACConfig
from rl_core.config import Linear
from rl_core.env import EnvStep, VecEnv
from rl_core.errors import CheckpointError
from rl_core.types import ArrayLike, Json
from rl_envs import as_vec_env, make_gym_vec
from rl_storages import ReplayBuffer
from rl_testing.scripted import WalkVecEnv
from rl_testing.stateful import check_same_state
from rl_train import Callback, Progress, Trainer, TrainerConfig, make
from rl_train.storage_files import storage_of
from support.envs import LateWalkVecEnv, counting_envs


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
            {"start_steps": 5, "update_after": 3, "update_every": 3, "num_minibatches": 2},
            [(3, 2), (6, 4), (9, 6), (12, 8)],
        ),
        # Four environments step together, so an update comes after every four transitions.
        (4, {"update_after": 1}, [(4, 1), (8, 2), (12, 3)]),
        (4, {"update_after": 8, "update_every": 4, "num_minibatches": 4}, [(8, 4), (12, 8)]),
        # Three: six transitions are the fewest that are not less than four.
        (3, {"update_every": 4}, [(6, 1), (12, 2)]),
        # As many gradient steps per transition as with one environment.
        (4, {"update_after": 1, "keep_ratio": True}, [(4, 4), (8, 8), (12, 12)]),
        (1, {"update_after": 11, "keep_ratio": True}, [(11, 1), (12, 2)]),
        (6, {"update_every": 2, "num_minibatches": 3, "keep_ratio": True}, [(6, 9), (12, 18)]),
        # Six transitions at a time, of which four would be one step: one and a half.
        (3, {"update_every": 4, "keep_ratio": True}, [(6, 1), (12, 3)]),
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
    usual = {"start_steps": 0, "update_after": 0, "minibatch_size": 4}
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


def _dqn(
    envs: VecEnv,
    options: DQNConfig,
    *callbacks: Callback,
    log_every: int | None = None,
) -> Trainer:
    torch.manual_seed(0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(policy="greedy", hidden_sizes=(4,)),
    )
    return Trainer(
        envs,
        DQN(actor, options),
        ReplayBuffer(size=100),
        config=TrainerConfig(compile="off", num_threads=1, log_every=log_every),
        callbacks=callbacks,
        seed=0,
    )


@pytest.mark.parametrize(
    ("lengths", "options", "expected"),
    [
        # Two transitions and a reset, over and over: three transitions take four rows or five.
        ([2], {"update_every": 3}, [(3, 1), (6, 2), (9, 3), (12, 4), (15, 5), (18, 6)]),
        ([2], {"update_after": 4, "update_every": 3}, [(6, 1), (9, 2), (12, 3), (15, 4), (18, 5)]),
        # With episodes of three beside them, steps bring 2, 2, 1, 1, 2, 1, 2, 1, 1, 2, 2, 0 and 2
        # transitions. An update is due for two, and the third counts toward the next one.
        (
            [2, 3],
            {},
            [(2, 1), (4, 2), (6, 3), (8, 4), (11, 5), (12, 6), (15, 7), (17, 8), (19, 9)],
        ),
        (
            [2, 3],
            {"keep_ratio": True},
            [(2, 2), (4, 4), (6, 6), (8, 8), (11, 10), (12, 12), (15, 14), (17, 16), (19, 18)],
        ),
        ([2, 3], {"update_every": 4}, [(4, 1), (8, 2), (12, 3), (17, 4), (21, 5)]),
        ([2, 3], {"update_after": 13, "update_every": 4}, [(17, 1), (21, 2)]),
        ([2, 3], {"update_every": 3, "num_minibatches": 2, "keep_ratio": True}, [(4, 2), (8, 5)]),
    ],
)
def test_rows_that_only_reset_bring_no_update_nearer(
    lengths: list[int], options: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    rows = [[length] for length in lengths]
    envs = counting_envs(rows, [True] * len(rows), AutoresetMode.NEXT_STEP)
    usual = {"update_after": 0, "minibatch_size": 2}
    diary = Diary()
    config = DQNConfig(**{**usual, **options})  # type: ignore[arg-type]  # whole numbers and a flag
    _dqn(envs, config, diary).train(total_steps=expected[-1][0])
    envs.close()
    assert diary.entries == expected


def test_native_vector_environments_keep_their_ratio() -> None:
    envs = as_vec_env(gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="vector_entry_point"))
    options = DQNConfig(epsilon=1.0, update_after=0, minibatch_size=2, keep_ratio=True)
    trainer = _dqn(envs, options)
    trainer.train(total_steps=400)
    envs.close()
    # Some 20 of the rows only reset; what comes after the last update is not learned from yet.
    assert trainer.total_steps // 8 == trainer.updates
    assert trainer.algorithm.gradients.count == 8 * trainer.updates


class Epsilons(Callback):
    """Writes down how greedy an actor acts."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.seen.append(float(trainer.algorithm.hyper["epsilon"]))


def test_schedules_move_before_there_is_an_update() -> None:
    envs = make_gym_vec("CartPole-v1", 1, seed=0)
    epsilons = Epsilons()
    options = DQNConfig(epsilon=Linear(1.0, 0.0), update_after=1000)
    _dqn(envs, options, epsilons, log_every=25).train(total_steps=100)
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
            DQN(actor, DQNConfig(start_steps=0, update_after=8, minibatch_size=4)),
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


class Stopping(WalkVecEnv):
    """Asks the run to stop in the middle of one of its steps."""

    trainer: Trainer | None = None
    steps_left = 0

    def step(self, action: ArrayLike) -> EnvStep:
        self.steps_left -= 1
        if self.trainer is not None and self.steps_left == 0:
            self.trainer.stop()
        return super().step(action)


class LateStopping(Stopping, LateWalkVecEnv):
    """The same where an ended row only resets in the step after."""


def _check_a_stop(
    walks: Callable[[int], Stopping], options: DQNConfig, at_step: int, total_steps: int
) -> Trainer:
    """Stop a run at a step of its environments, and go on in another one."""
    (whole, expected), (stopped, first), (resumed, second) = (
        (_dqn(walks(2), options, diary), diary) for diary in (Diary(), Diary(), Diary())
    )
    whole.train(total_steps)
    assert isinstance(stopped.envs, Stopping)
    stopped.envs.trainer, stopped.envs.steps_left = stopped, at_step
    stopped.train(total_steps)
    resumed.load_state_dict(stopped.state_dict())
    resumed.train(total_steps)
    assert first.entries + second.entries == expected.entries
    check_same_state(resumed.state_dict(), whole.state_dict())
    return stopped


def test_a_run_that_is_stopped_between_updates_goes_on_to_the_next_one() -> None:
    options = DQNConfig(start_steps=4, update_after=4, update_every=10, epsilon=Linear(1.0, 0.0))
    assert _check_a_stop(Stopping, options, 7, 60).total_steps == 14


@pytest.mark.parametrize("keep_ratio", [False, True])
def test_a_stop_leaves_over_what_counts_toward_the_next_update(keep_ratio: bool) -> None:
    options = DQNConfig(update_after=4, update_every=3, minibatch_size=4, keep_ratio=keep_ratio)
    left_over = set()
    for at_step in range(1, 25):
        stopped = _check_a_stop(LateStopping, options, at_step, 40)
        left_over.add((bool(stopped.state.iteration.start), stopped.state.iteration.transitions))
    # In the middle of a turn, and between two, with and without transitions left over.
    assert left_over >= {(True, 2), (True, 3), (False, 0), (False, 1)}


@pytest.mark.parametrize("name", ["dqn", "ddpg", "td3", "sac"])
def test_every_algorithm_keeps_its_ratio(name: str) -> None:
    env = "CartPole-v1" if name == "dqn" else "Pendulum-v1"
    cadence: dict[str, Json] = {"update_after": 1, "keep_ratio": True, "minibatch_size": 4}
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


def test_time_left_is_told_once_the_run_learns() -> None:
    stream, seconds = io.StringIO(), count()
    agent = make(
        "dqn", "CartPole-v1", update_after=40, minibatch_size=8, hidden_sizes=[8], compile="off"
    )
    progress = Progress("log", stream, clock=lambda: float(next(seconds)))
    agent.train(total_steps=80, callbacks=[progress], progress=False)
    lines = [line for line in stream.getvalue().splitlines() if "evaluating" not in line]
    for line in lines:
        steps = int(line.split()[0])
        assert ("left" in line) == (40 < steps < 80)
    assert any(" s left" in line for line in lines)
