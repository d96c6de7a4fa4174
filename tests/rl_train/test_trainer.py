import functools
import itertools
import json
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, TimeLimit
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from rl_core.algorithm import PolicyLossAddOn, UpdateSchedule
from rl_core.batch import ReplayBatch, RolloutBatch
from rl_core.compile.cache import GraphCache
from rl_core.compile.function import CompiledFunctions
from rl_core.config import Linear
from rl_core.env import EnvStep, VecEnv
from rl_core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    EnvironmentFaultError,
    MissingExtraError,
    SpaceError,
)
from rl_core.logger import Logger
from rl_core.nn.distributions import Distribution
from rl_core.seeding import spawn_seed
from rl_core.stateful import StateReader
from rl_core.storage import AnyStorage, HasSlices, Storage
from rl_core.types import ArrayLike, Observation, StateDict
from rl_envs import as_vec_env, make_gym_vec, make_vec
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.scripted import CountingEnv, IdentityEnv, WalkVecEnv
from rl_testing.stateful import check_same_state, copy_state
from rl_testing.toy import ToyActor, ToyActorCritic, ToyConfig
from rl_train import (
    Callback,
    ConsoleLogger,
    Episode,
    EvaluationResult,
    JsonlLogger,
    Trainer,
    TrainerConfig,
    TrainingResult,
    evaluate_policy,
)
from rl_train.checkpoint import list_checkpoints, load_checkpoint
from rl_train.loggers import read_metrics
from rl_train.trainer import Budget, budget
from rl_train.trainer.setup import worthwhile_compile_mode
from rl_train.trainer.state import RecentEpisodes
from support.envs import FaultyEnv, counting_envs
from support.signals import usual_interrupts

NUM_STEPS, NUM_ENVS = 4, 2
ROWS = NUM_STEPS * NUM_ENVS


@pytest.fixture(autouse=True)
def _no_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are not flushed to the disk here, which takes most of a short run's time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _identity_envs() -> VecEnv:
    return make_gym_vec(partial(IdentityEnv, spaces.Discrete(3), 5), NUM_ENVS)


class Recorder(Logger):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.lines.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed += 1


def _trainer(
    run_dir: Path | None = None,
    *,
    envs: VecEnv | None = None,
    storage: AnyStorage | None = None,
    config: TrainerConfig | None = None,
    algorithm: ToyConfig | None = None,
    remembers: bool = False,
    seed: int | None = 1,
    weights: int = 1,
    test_envs: VecEnv | Callable[[], VecEnv] | None = None,
    loggers: tuple[Logger, ...] = (),
    callbacks: tuple[Callback, ...] = (),
) -> Trainer:
    envs = _identity_envs() if envs is None else envs
    with torch.random.fork_rng():
        torch.manual_seed(weights)
        actor = ToyActor(
            envs.single_observation_space,
            envs.single_action_space,
            remembers=remembers,
            normalize=True,
        )
    return Trainer(
        envs,
        ToyActorCritic(actor, algorithm),
        ReferenceRolloutStorage(NUM_STEPS) if storage is None else storage,
        config=config,
        seed=seed,
        run_dir=run_dir,
        test_envs=test_envs,
        loggers=loggers,
        callbacks=callbacks,
    )


# Listeners


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"callbacks": [lambda: 1]}, r"^callbacks\[0\]: got function; expected an object of a sub"),
        ({"callbacks": Callback()}, r"^callbacks: got Callback; .* as in callbacks=\[\.\.\.\]"),
        ({"callbacks": [Callback(), Callback]}, r"^callbacks\[1\]: got the class Callback; exp"),
        ({"loggers": [print]}, r"^loggers\[0\]: got builtin_function_or_method; expected an obj"),
        ({"loggers": None}, r"^loggers: got NoneType; expected a list of Logger objects"),
    ],
)
def test_what_cannot_listen_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _trainer(**options)


def test_histograms_that_nobody_shows_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    config = TrainerConfig(log_histograms=True)
    trainer = _trainer(tmp_path / "run", config=config, loggers=(ConsoleLogger(),))
    with pytest.raises(
        ConfigError, match=r"trainer\.log_histograms has no effect.*which needs a r"
    ):
        trainer.train(ROWS)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["tensorboard", "csv"])
def test_loggers_that_write_files_need_a_place_for_them(name: str) -> None:
    with pytest.raises(ConfigError, match=f"logger '{name}' needs a run_dir"):
        _trainer(config=TrainerConfig(loggers=(name,))).train(ROWS)


# Counts


def test_a_run_ends_with_the_rollout_that_reaches_its_steps() -> None:
    trainer = _trainer()
    result = trainer.train(total_steps=3 * ROWS - 1)
    assert (result.total_steps, result.total_updates) == (3 * ROWS, 3)
    assert trainer.algorithm.gradients.count == 6
    assert result.wall_seconds > 0.0
    assert result.steps_per_second == pytest.approx(3 * ROWS / result.wall_seconds)
    assert result.evaluation is None


def test_numbers_of_a_callback_are_logged(tmp_path: Path) -> None:
    class Own(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            trainer.record({"own/updates": float(trainer.updates)})

    trainer = _trainer(tmp_path, callbacks=(Own(),), config=TrainerConfig(log_every=2 * ROWS))
    trainer.train(4 * ROWS)
    for wrong in ({"own/text": "a"}, {"own/none": None}, "own/number"):
        with pytest.raises(ConfigError, match=r"^record takes numbers by name, such as"):
            trainer.record(wrong)  # type: ignore[arg-type]  # wrong on purpose
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [line["own/updates"] for line in lines] == [1.5, 3.5]


def test_what_is_recorded_of_an_evaluation_is_logged_with_it(tmp_path: Path) -> None:
    class Own(Callback):
        def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> bool:
            trainer.record({"own/iqm": result.iqm})
            return trainer.updates == 4

    config = TrainerConfig(test_every=2, log_every=ROWS)
    envs = _identity_envs()
    _trainer(tmp_path, callbacks=(Own(),), config=config, test_envs=envs).train(8 * ROWS)
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [line["step"] for line in lines if "own/iqm" in line] == [2 * ROWS, 4 * ROWS]
    assert [line["step"] for line in lines if "test/episode_return_iqm" in line] == [
        2 * ROWS,
        4 * ROWS,
    ]
    for line in lines:
        assert ("own/iqm" in line) != ("steps_per_second" in line)


def test_a_module_that_is_neither_learned_nor_saved_is_refused() -> None:
    class More(ToyActorCritic):
        def __init__(self, actor: ToyActor) -> None:
            super().__init__(actor)
            self.more = torch.nn.Linear(2, 2)

    envs = _identity_envs()
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    storage = ReferenceRolloutStorage(NUM_STEPS)
    with pytest.raises(ConfigError, match=r"^algorithm.more has parameters that are neither"):
        Trainer(envs, More(actor), storage)


def test_a_run_stays_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Move(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            os.chdir(tmp_path / "elsewhere")

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    _trainer(Path("run"), callbacks=(Move(),)).train(4 * ROWS)
    assert list_checkpoints(tmp_path / "run" / "checkpoints")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_learning_offline_has_no_number_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer()
    monkeypatch.setattr(type(trainer.algorithm), "collects", False)
    with pytest.raises(
        ConfigError, match=r"total_episodes counts .* data alone .*; give total_steps or"
    ):
        trainer.train(total_episodes=3)


def test_a_run_ends_with_the_rollout_that_reaches_its_episodes() -> None:
    trainer = _trainer()  # two episodes end in steps 5, 10, 15, ...
    result = trainer.train(total_episodes=3)
    assert trainer.collector.total_episodes == 4
    assert result.total_updates == 3


def test_a_run_ends_with_its_updates() -> None:
    assert _trainer().train(total_updates=2).total_steps == 2 * ROWS


def test_a_second_call_goes_on() -> None:
    trainer, whole = _trainer(), _trainer()
    trainer.train(total_updates=2)
    result = trainer.train(total_updates=5)
    assert (result.total_steps, result.total_updates) == (5 * ROWS, 5)
    assert result.steps_per_second == pytest.approx(3 * ROWS / result.wall_seconds)
    whole.train(total_updates=5)
    check_same_state(trainer.state_dict(), whole.state_dict())


def test_rows_that_only_reset_are_not_counted() -> None:
    envs = counting_envs([[1], [1]], [True, True], AutoresetMode.NEXT_STEP)
    result = _trainer(envs=envs).train(total_updates=3)
    assert result.total_steps == 3 * ROWS // 2


def test_a_rollout_of_rows_that_only_reset_makes_room_for_the_next_one() -> None:
    envs = counting_envs([[1], [1]], [True, True], AutoresetMode.NEXT_STEP)
    trainer = _trainer(envs=envs, storage=ReferenceRolloutStorage(1))
    assert trainer.train(total_steps=6).total_updates == 3  # of two rows each, and as many resets


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "got none"),
        ({"total_steps": 8, "total_updates": 2}, "total_steps, total_updates"),
        ({"total_steps": 8, "total_episodes": 1, "total_updates": 2}, "exactly one of"),
        ({"total_steps": 0}, "total_steps must be a whole number of at least 1, got 0"),
        ({"total_episodes": -1}, "total_episodes must be a whole number of at least 1"),
    ],
)
def test_just_one_count_is_taken(counts: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _trainer().train(**counts, progress=False)


def test_a_count_that_was_reached_is_refused() -> None:
    trainer = _trainer()
    trainer.train(total_updates=2)
    with pytest.raises(ConfigError, match="total_updates is 2, but the run already has 2 updates"):
        trainer.train(total_updates=2)
    with pytest.raises(ConfigError, match="already has 16 steps"):
        trainer.train(total_steps=9)


# Parts that do not go together


def test_evaluations_need_environments_of_their_own() -> None:
    with pytest.raises(ConfigError, match="test_every needs test environments"):
        _trainer(config=TrainerConfig(test_every=2))
    with pytest.raises(ConfigError, match="test_envs"):
        _trainer().evaluate()


class Wrapped(WalkVecEnv):
    """Holds other environments, as a wrapper does."""

    def __init__(self, envs: VecEnv) -> None:
        super().__init__(NUM_ENVS)
        self.envs = envs


@pytest.mark.parametrize("kind", ["same", "wrapped", "adapted", "one"])
@pytest.mark.parametrize("is_made", [False, True])
def test_evaluations_do_not_take_the_environments_that_are_learned_in(
    kind: str, is_made: bool
) -> None:
    walk = WalkVecEnv(NUM_ENVS)
    vector = SyncVectorEnv([lambda: CountingEnv([3])] * NUM_ENVS)
    single = CountingEnv([3])
    envs, others = {
        "same": (walk, walk),
        "wrapped": (walk, Wrapped(walk)),
        "adapted": (as_vec_env(vector), RecordEpisodeStatistics(vector)),
        "one": (make_gym_vec(lambda: single), TimeLimit(single, 2)),
    }[kind]
    with pytest.raises(ConfigError, match="test_envs are, or wrap, the environments"):
        _trainer(envs=envs, test_envs=(lambda: others) if is_made else others).evaluate()  # type: ignore[arg-type, return-value]  # any environment
    _trainer(envs=WalkVecEnv(NUM_ENVS), test_envs=WalkVecEnv(NUM_ENVS)).evaluate(1)


def test_environments_made_for_an_evaluation_outside_of_a_run_are_closed() -> None:
    class Closing(WalkVecEnv):
        def close(self) -> None:
            super().close()
            closed.append(self)

    def make() -> VecEnv:
        made.append(Closing(NUM_ENVS))
        return made[-1]

    closed: list[VecEnv] = []
    made: list[VecEnv] = []
    given = Closing(NUM_ENVS)
    trainer = _trainer(envs=WalkVecEnv(NUM_ENVS), test_envs=make)
    trainer.evaluate(1)
    trainer.evaluate(1)
    assert len(made) == 2
    assert closed == made
    _trainer(envs=WalkVecEnv(NUM_ENVS), test_envs=given).evaluate(1)
    assert given not in closed


def test_environments_made_for_evaluations_stay_open_within_a_run() -> None:
    class Evaluates(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            trainer.evaluate(1)

    made: list[VecEnv] = []

    def make() -> VecEnv:
        made.append(_identity_envs())
        return made[-1]

    _trainer(test_envs=make, callbacks=(Evaluates(),)).train(total_updates=3)
    assert len(made) == 1


def test_environments_made_for_an_evaluation_that_cannot_be_are_closed() -> None:
    class Other(gymnasium.Env[Any, Any]):
        observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

        def close(self) -> None:
            closed.append(self)

    closed: list[gymnasium.Env] = []
    trainer = _trainer(envs=WalkVecEnv(NUM_ENVS), test_envs=Other)  # type: ignore[arg-type]  # any environment
    with pytest.raises(SpaceError, match="test environments"):
        trainer.evaluate(1)
    assert len(closed) == 1


def test_numbers_of_numpy_are_seeds_too(tmp_path: Path) -> None:
    _trainer(tmp_path, seed=np.int64(1)).train(total_updates=1)  # type: ignore[arg-type]  # what is tested
    resumed = _trainer(tmp_path, seed=1)
    resumed.resume()
    assert resumed.seed == 1
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got -1"):
        _trainer(seed=-1)


def test_a_storage_of_other_batches_is_refused_before_anything_is_allocated() -> None:
    class Other(ReferenceRolloutStorage):
        batch_type = dict  # type: ignore[assignment]  # of another kind on purpose

    storage = Other(NUM_STEPS)
    with pytest.raises(ConfigError, match="learns from RolloutBatch, but Other gives dict"):
        _trainer(storage=storage)
    assert storage.spec is None


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (UpdateSchedule(num_minibatches=1, update_every=3), "complete, after 8 rows"),
        (UpdateSchedule(num_minibatches=1, update_after=100), "update_after"),
        (UpdateSchedule(num_minibatches=1, start_steps=100), "start_steps"),
    ],
)
def test_a_rollout_has_its_own_rhythm(schedule: UpdateSchedule, message: str) -> None:
    class Odd(ToyActorCritic):
        @property
        def schedule(self) -> UpdateSchedule:
            return schedule

    envs = _identity_envs()
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    with pytest.raises(ConfigError, match=message):
        Trainer(envs, Odd(actor), ReferenceRolloutStorage(NUM_STEPS))


@pytest.mark.parametrize(
    "name",
    ["log_every", "checkpoint_every", "keep_checkpoints", "num_threads", "num_test_episodes"],
)
def test_options_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^{name} must be a whole number (of at least 1|in \[1, ).*, got 0"
    ):
        TrainerConfig(**{name: 0})  # type: ignore[arg-type]  # one of the counts
    with pytest.raises(ConfigError, match=r"^compile: unknown name"):
        TrainerConfig(compile="sometimes")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ConfigError, match=r"^checkpoint_every: unknown name 'ned'.*'end'"):
        TrainerConfig(checkpoint_every="ned")  # type: ignore[arg-type]  # what is tested


# Callbacks


class Diary(Callback):
    """Notes every turn, and ends the run where it is told to."""

    def __init__(self, *, stop_at_update: int = 0, stop_at_evaluation: bool = False) -> None:
        self.turns: list[str] = []
        self.metrics: list[Mapping[str, float]] = []
        self.stop_at_update = stop_at_update
        self.stop_at_evaluation = stop_at_evaluation

    def on_training_start(self, trainer: Trainer, target: int, unit: str) -> None:
        self.turns.append(f"start {target} {unit}")

    def on_update_end(self, trainer: Trainer) -> bool | None:
        self.turns.append(f"update {trainer.updates}")
        return True if trainer.updates == self.stop_at_update else None

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.turns.append(f"log {trainer.total_steps}")
        self.metrics.append(metrics)

    def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> bool | None:
        self.turns.append(f"evaluation {result.num_episodes}")
        return self.stop_at_evaluation

    def on_training_end(self, trainer: Trainer) -> None:
        self.turns.append("end")


def test_no_machine_has_so_many_threads() -> None:
    with pytest.raises(ConfigError, match=r"num_threads must be .*\[1, 10000\].*, got 99999999999"):
        TrainerConfig(num_threads=99_999_999_999)


def test_callbacks_see_every_turn() -> None:
    diary = Diary()
    trainer = _trainer(
        config=TrainerConfig(log_every=1000, test_every=2, num_test_episodes=3),
        test_envs=_identity_envs(),
        callbacks=(diary,),
    )
    trainer.train(total_updates=3)
    expected = ["start 3 updates", "update 1", "update 2", "evaluation 3", "log 16", "update 3"]
    assert diary.turns == [*expected, "log 24", "end"]
    assert "test/episode_return" in diary.metrics[0]
    assert "test/episode_return" not in diary.metrics[1]


def test_any_callback_ends_the_run_after_an_update() -> None:
    first, second = Diary(stop_at_update=2), Diary()
    result = _trainer(config=TrainerConfig(log_every=1000), callbacks=(first, second)).train(
        total_updates=9
    )
    assert result.total_updates == 2
    assert first.turns == second.turns
    assert first.turns[-3:] == ["update 2", "log 16", "end"]


def test_callbacks_are_told_in_their_order_and_nothing_after_the_end() -> None:
    told: list[str] = []

    class Telling(Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_epoch_end(self, trainer: Trainer, epoch: int) -> None:
            told.append(f"epoch {self.name}")

        def on_training_end(self, trainer: Trainer) -> None:
            told.append(f"end {self.name}")

    trainer = _trainer(callbacks=(Telling("a"), Telling("b")))
    trainer.train(total_updates=1)
    assert told == ["epoch a", "epoch b", "end a", "end b"]
    trainer.collector.collect(ROWS, trainer.storage)
    trainer.algorithm.update(trainer.storage)
    assert told[4:] == []


def test_any_callback_ends_the_run_after_an_evaluation() -> None:
    diary = Diary(stop_at_evaluation=True)
    result = _trainer(
        config=TrainerConfig(test_every=3), test_envs=_identity_envs, callbacks=(diary,)
    ).train(total_updates=9)
    assert result.total_updates == 3


def test_a_failed_run_says_goodbye_too() -> None:
    diary, recorder = Diary(), Recorder()
    envs = make_gym_vec(lambda: FaultyEnv(CountingEnv([9]), "raise_step", at_step=10), NUM_ENVS)
    trainer = _trainer(envs=envs, callbacks=(diary,), loggers=(recorder,))
    with pytest.raises(EnvironmentFaultError):
        trainer.train(total_updates=5)
    assert diary.turns[-1] == "end"
    assert recorder.closed == 1


class Failing(Callback):
    """Fails where it is told to."""

    def __init__(self, turn: str) -> None:
        self.turn = turn

    def on_training_start(self, trainer: Trainer, target: int, unit: str) -> bool:
        if self.turn == "start":
            raise ValueError(self.turn)
        return False

    def on_training_end(self, trainer: Trainer) -> None:
        if self.turn == "end":
            raise ValueError(self.turn)


@pytest.mark.parametrize("turn", ["start", "end"])
def test_a_callback_that_fails_keeps_nobody_else_from_ending(turn: str) -> None:
    diary, recorder = Diary(), Recorder()
    trainer = _trainer(callbacks=(Failing(turn), diary), loggers=(recorder,))
    with pytest.raises(ValueError, match=turn):
        trainer.train(total_updates=1)
    assert diary.turns[-1] == "end"
    assert recorder.closed == 1


@pytest.mark.parametrize("checkpoint_every", ["auto", "end"])
def test_what_came_before_an_environments_fault_is_saved(
    tmp_path: Path, checkpoint_every: Literal["auto", "end"]
) -> None:
    at_step = 10 + ROWS
    envs = make_gym_vec(lambda: FaultyEnv(CountingEnv([9]), "raise_step", at_step=at_step), 1)
    config = TrainerConfig(checkpoint_every=checkpoint_every)
    trainer = _trainer(tmp_path / "run", envs=envs, config=config)
    with pytest.raises(EnvironmentFaultError, match=r"; the state before it is in .*step-\d+$"):
        trainer.train(total_updates=50)
    (saved,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert load_checkpoint(saved).step == trainer.total_steps >= 9
    again = _trainer(tmp_path / "run", envs=make_gym_vec(lambda: CountingEnv([9]), 1))
    again.resume()
    assert again.train(total_updates=trainer.updates + 2).total_updates == trainer.updates + 2


class _Breaks(Callback):
    """Lets an environment raise in the next step, after two updates and some rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def on_tick(self, trainer: Trainer, activity: str) -> None:
        if trainer.updates == 2 and len(trainer.storage) == self.rows:
            _first(trainer).step = self._raise

    def _raise(self, action: object) -> object:
        raise RuntimeError("the simulator is gone")


def _first(trainer: Trainer) -> Any:
    return cast("Any", trainer.envs).envs[0].unwrapped


@pytest.mark.parametrize("rows", [0, 2])
def test_a_run_goes_on_after_a_fault_of_environments_that_are_saved_exactly(
    tmp_path: Path, rows: int
) -> None:
    def make(*callbacks: Callback) -> Trainer:
        envs = make_vec("CartPole-v1", NUM_ENVS, vectorization="sync")
        assert envs.resume_grade == "exact"
        return _trainer(tmp_path / "run", envs=envs, callbacks=callbacks)

    trainer = make(_Breaks(rows))
    with pytest.raises(EnvironmentFaultError, match=r"is gone; the state before it is in"):
        trainer.train(total_updates=5, progress=False)
    (saved,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert load_checkpoint(saved).resume_grade == "episode"
    again = make()
    again.resume()
    assert len(again.storage) == 0  # no rollout spans the fault
    assert again.train(total_updates=5, progress=False).total_updates == 5


class _Kills(Callback):
    """Kills the process of an environment at the second update."""

    def on_update_end(self, trainer: Trainer) -> bool | None:
        if trainer.updates == 2:
            cast("Any", trainer.envs).processes[0].kill()
        return None


def test_a_checkpoint_after_a_process_died_leaves_its_episodes_out(tmp_path: Path) -> None:
    def make(*callbacks: Callback) -> Trainer:
        envs = make_vec("CartPole-v1", NUM_ENVS, vectorization="async", max_restarts=1)
        config = TrainerConfig(checkpoint_every=ROWS)
        return _trainer(tmp_path / "run", envs=envs, config=config, callbacks=callbacks)

    trainer = make(_Kills())
    with trainer.envs, pytest.warns(RuntimeWarning, match="not saved|started again"):
        assert trainer.train(total_updates=3, progress=False).total_updates == 3
    paths = list_checkpoints(tmp_path / "run" / "checkpoints")
    grades = [load_checkpoint(path).resume_grade for path in paths]
    assert grades[-2:] == ["episode", "exact"]
    shutil.rmtree(paths[-1])
    again = make()
    with again.envs:
        again.resume()
        assert again.train(total_updates=3, progress=False).total_updates == 3


def test_a_session_goes_on_after_a_fault() -> None:
    envs = make_vec("CartPole-v1", NUM_ENVS, vectorization="sync")
    trainer = _trainer(envs=envs, callbacks=(_Breaks(2),))
    with pytest.raises(EnvironmentFaultError, match="is gone"):
        trainer.train(total_updates=5, progress=False)
    del _first(trainer).step
    trainer.callbacks = ()
    assert trainer.train(total_updates=5, progress=False).total_updates == 5


def _with_statistics(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return NormalizeObservation(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("test_envs", [_with_statistics, "WithStatistics-v0"])
def test_test_environments_are_prepared_for_testing(test_envs: Any) -> None:
    gymnasium.register("WithStatistics-v0", entry_point=_with_statistics)
    try:
        trainer = _trainer(envs=make_vec(_with_statistics, NUM_ENVS), test_envs=test_envs)
        with pytest.warns(RuntimeWarning, match="of a test environment has statistics of its own"):
            trainer.evaluate(1)
    finally:
        del gymnasium.registry["WithStatistics-v0"]


def test_loggers_are_logged_to_in_the_next_session_too(tmp_path: Path) -> None:
    trainer = _trainer(loggers=(JsonlLogger(tmp_path / "lines.jsonl"),))
    trainer.train(total_updates=1)
    trainer.train(total_updates=2)
    assert len(list(read_metrics(tmp_path / "lines.jsonl"))) == 2


def test_test_environments_with_other_spaces_are_refused_before_training() -> None:
    with pytest.raises(SpaceError, match="the observation space of the test environments is"):
        _trainer(test_envs=make_gym_vec("CartPole-v1", 1))


LEFT_OVER = f".tmp-{32 * '0'}"
"""What a save that was interrupted leaves behind."""


def test_a_damaged_best_state_costs_no_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "config": TrainerConfig(test_every=1, num_test_episodes=1),
        "test_envs": _identity_envs,
    }
    _trainer(tmp_path / "run", **options).train(total_updates=1)
    (best,) = list_checkpoints(tmp_path / "run" / "best")
    damaged = bytearray((best / "tensors.safetensors").read_bytes())
    damaged[-1] ^= 1
    (best / "tensors.safetensors").write_bytes(damaged)
    (tmp_path / "run" / "nonfinite").mkdir()
    for folder in ("best", "checkpoints", "nonfinite", "."):
        (tmp_path / "run" / folder / LEFT_OVER).mkdir()
    again = _trainer(tmp_path / "run", **options)
    again.resume()
    with pytest.warns(UserWarning, match="the next evaluation counts as the best"):
        again.train(total_updates=2)
    (best,) = list_checkpoints(tmp_path / "run" / "best")
    assert load_checkpoint(best).step == again.total_steps
    assert not list((tmp_path / "run").rglob(LEFT_OVER))


@pytest.mark.parametrize("final", [7, 0])
def test_the_last_evaluation_may_have_more_episodes_or_none(final: int) -> None:
    diary = Diary()
    result = _trainer(
        config=TrainerConfig(test_every=1, num_test_episodes=3, final_test_episodes=final),
        test_envs=_identity_envs,
        callbacks=(diary,),
    ).train(total_updates=2)
    if final == 0:
        assert result.evaluation is None
    else:
        assert result.evaluation is not None
        assert result.evaluation.num_episodes == 7
    assert [turn for turn in diary.turns if turn.startswith("eval")] == ["evaluation 3"] * 2


# Metrics


def test_a_line_of_metrics_tells_what_happened() -> None:
    recorder = Recorder()
    trainer = _trainer(
        envs=counting_envs([[2], [4]], [True, False]),
        config=TrainerConfig(log_every=1),
        loggers=(recorder,),
    )
    trainer.train(total_updates=2)
    assert [step for step, _ in recorder.lines] == [ROWS, 2 * ROWS]
    metrics = recorder.lines[0][1]
    # Two episodes of the first row, 1 + 2 and 101 + 102, and one of the second, 1 + 2 + 3 + 4.
    assert metrics["train/episode_return"] == pytest.approx((3 + 203 + 10) / 3)
    assert metrics["train/episode_length"] == pytest.approx(8 / 3)
    spread = [(episode - 72.0) ** 2 for episode in (3, 203, 10)]
    assert metrics["train/episode_return_std"] == pytest.approx((sum(spread) / 3) ** 0.5)
    assert metrics["train/episode_return_min"] == 3.0
    assert metrics["train/episode_return_max"] == 203.0
    assert "train/success_rate" not in metrics
    assert metrics["train/episodes"] == 3.0
    assert metrics["train/updates"] == 1.0
    assert metrics["steps_per_second"] > 0.0
    assert {"loss/policy", "loss/value", "gradients/actor_norm"} <= set(metrics)
    assert "value/advantage" in metrics
    assert trainer.algorithm.read_metrics() == {}
    assert recorder.closed == 1


def test_returns_are_those_of_the_environment_when_rewards_are_scaled() -> None:
    recorder = Recorder()
    config = TrainerConfig(scale_rewards=True)
    trainer = _trainer(
        envs=counting_envs([[4], [4]], [True, True]), config=config, loggers=(recorder,)
    )
    assert trainer.collector.reward_scaler is not None
    assert trainer.collector.reward_scaler.gamma == pytest.approx(0.9)
    trainer.train(total_updates=1)
    assert recorder.lines[0][1]["train/episode_return"] == 10.0


def test_the_scale_of_rewards_follows_the_discount() -> None:
    class Discounts(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_update_end(self, trainer: Trainer) -> None:
            assert trainer.collector.reward_scaler is not None
            self.seen.append(trainer.collector.reward_scaler.gamma)
            if trainer.updates == 3:
                trainer.algorithm.update_algorithm_parameter("gamma", 0.25)

    discounts, config = Discounts(), TrainerConfig(scale_rewards=True)
    algorithm = ToyConfig(gamma=Linear(0.5, 1.0))
    _trainer(config=config, algorithm=algorithm, callbacks=(discounts,)).train(total_updates=4)
    assert discounts.seen == [0.5, 0.625, 0.75, 0.25]


def test_speed_is_that_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = Recorder()
    trainer = _trainer(config=TrainerConfig(log_every=1), loggers=(logger,))
    monkeypatch.setattr("rl_train.trainer.loop.time.perf_counter", itertools.count().__next__)
    for updates in (2, 3):  # the second session collects as much as the first rollout
        trainer.train(total_updates=updates)
    first, _, again = (line["steps_per_second"] for _, line in logger.lines)
    assert again == first > 0.0


def test_lines_are_spaced_by_environment_steps() -> None:
    recorder = Recorder()
    _trainer(config=TrainerConfig(log_every=20), loggers=(recorder,)).train(total_updates=7)
    assert [step for step, _ in recorder.lines] == [24, 40, 56]


def test_the_mean_return_is_of_the_last_hundred_episodes() -> None:
    recorder = Recorder()
    _trainer(envs=counting_envs([[1], [1]], [True, True]), loggers=(recorder,)).train(
        total_episodes=160
    )
    # Each row's episode e returns 100 e + 1; the last hundred are its 30th to 79th.
    assert recorder.lines[-1][1]["train/episode_return"] == pytest.approx(54.5 * 100 + 1)


def test_the_rate_of_success_is_of_the_newest_episodes_that_report_it() -> None:
    recent, restored = RecentEpisodes(), RecentEpisodes()
    assert all(math.isnan(value) for value in recent.metrics().values())
    recent.extend([Episode(1.0, 1, 0, success) for success in (False, None, True, True)])
    assert recent.metrics()["train/success_rate"] == pytest.approx(2 / 3)
    restored.load_state_dict(recent.state_dict())
    for episodes in (recent, restored):
        episodes.extend([Episode(1.0, 1, 0, success=True)] * 99)
        assert episodes.metrics()["train/success_rate"] == 1.0


# The run directory


def _plain_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_run_directory_holds_what_others_rely_on(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "first"
    trainer = _trainer(
        run_dir,
        config=TrainerConfig(log_every=1, test_every=2, num_test_episodes=4),
        test_envs=_identity_envs,
    )
    result = trainer.train(total_updates=3)
    plain = ["best", "checkpoints", "metrics.jsonl", "recipe.toml", "summary.json"]
    assert _plain_names(run_dir) == plain
    assert _plain_names(run_dir / "checkpoints") == ["step-24"]
    assert _plain_names(run_dir / "best") == ["step-16"]
    lines = read_metrics(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [8, 16, 24]
    for line in lines:
        assert {"step", "time", "steps_per_second", "train/episode_return"} <= set(line)
    assert lines[0]["train/episode_return"] is None  # no episode has ended yet
    assert [line.get("test/episode_return") is not None for line in lines] == [False, True, False]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert result.evaluation is not None
    assert summary == {
        "total_steps": 24,
        "total_episodes": trainer.collector.total_episodes,
        "total_updates": 3,
        "session_steps": 24,
        "wall_seconds": result.wall_seconds,
        "steps_per_second": result.steps_per_second,
        "final_return_mean": result.evaluation.mean,
        "final_evaluation": result.evaluation.as_dict(),
        "stopped": False,
    }
    assert result.evaluation.num_episodes == 4
    assert trainer.evaluate() == result.evaluation
    again = evaluate_policy(trainer.algorithm, _identity_envs(), 4, seed=spawn_seed(1, "test"))
    assert again == result.evaluation


def test_nothing_is_written_without_a_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = _trainer(config=TrainerConfig(checkpoint_every=8))
    trainer.train(total_updates=2)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="run_dir"):
        trainer.save_checkpoint()
    with pytest.raises(ConfigError, match="run_dir"):
        trainer.resume()


def test_an_unknown_return_is_null_in_the_summary(tmp_path: Path) -> None:
    _trainer(tmp_path).train(total_updates=1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["final_return_mean"] is None
    assert summary["final_evaluation"] is None


def test_a_run_directory_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty"):
        _trainer(tmp_path).train(total_updates=1)
    assert _plain_names(tmp_path) == ["notes.txt"]
    with pytest.raises(ConfigError, match="is not writable"):
        _trainer(tmp_path / "notes.txt").train(total_updates=1)


def test_a_second_call_goes_on_in_the_same_run_directory(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, config=TrainerConfig(log_every=1))
    trainer.train(total_updates=2)
    trainer.train(total_updates=4)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [8, 16, 24, 32]
    assert json.loads((tmp_path / "summary.json").read_text())["total_steps"] == 32


def test_a_run_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    class FailOnce(Callback):
        failed = False

        def on_update_end(self, trainer: Trainer) -> bool | None:
            if not self.failed:
                self.failed = True
                raise RuntimeError("a bug in a callback")
            return None

    config = TrainerConfig(checkpoint_every="end")
    trainer = _trainer(tmp_path, config=config, callbacks=(FailOnce(),))
    with pytest.raises(RuntimeError, match="a bug") as failure:
        trainer.train(total_updates=2)
    (saved,) = list_checkpoints(tmp_path / "checkpoints")
    assert failure.value.__notes__ == [f"rl-train: the state before it is in {saved}"]
    assert trainer.train(total_updates=2).total_updates == 2


def test_what_came_before_a_failing_logger_is_saved(tmp_path: Path) -> None:
    class Full(Recorder):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise OSError("no space left")

    config = TrainerConfig(checkpoint_every="end", log_every=1)
    trainer = _trainer(tmp_path, config=config, loggers=(Full(),))
    with pytest.raises(OSError, match="no space left"):
        trainer.train(total_updates=3)
    again = _trainer(tmp_path)
    again.resume()
    assert again.updates == 1
    assert again.train(total_updates=3).total_updates == 3


def test_others_are_told_although_a_logger_or_callback_fails(tmp_path: Path) -> None:
    class Full(Recorder):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise OSError("no space left")

    class Broken(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            if trainer.updates == 2:
                raise RuntimeError("a bug in a callback")

        def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
            raise RuntimeError("another one")

    config, told, recorder = TrainerConfig(log_every=1), Diary(), Recorder()
    trainer = _trainer(
        tmp_path, config=config, callbacks=(Broken(), told), loggers=(Full(), recorder)
    )
    with pytest.raises(OSError, match="no space left"):
        trainer.train(total_updates=3)
    assert [step for step, _ in recorder.lines] == [8]
    assert len(told.metrics) == 1
    with pytest.raises(RuntimeError, match="a bug in a callback"):
        trainer.train(total_updates=3)
    assert told.turns.count("update 2") == 1


def test_half_an_update_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = _trainer(tmp_path, config=TrainerConfig(checkpoint_every="end"))

    def fail(*_: object) -> None:
        raise DataError("an error that no priority can have")

    monkeypatch.setattr(trainer.storage, "after_gradients", fail)
    with pytest.raises(DataError, match=r"can have; nothing was saved, as a run cannot go on from"):
        trainer.train(total_updates=2)
    assert not list_checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize("event", ["epoch_start", "epoch_end", "minibatch_start", "minibatch_end"])
def test_a_callback_that_fails_within_an_update_is_told_that_nothing_was_saved(
    tmp_path: Path, event: str
) -> None:
    def fail(self: Callback, trainer: Trainer, index: int) -> None:
        raise RuntimeError("a bug in a callback")

    failing = type("Failing", (Callback,), {f"on_{event}": fail})
    trainer = _trainer(tmp_path, callbacks=(failing(),))
    with pytest.raises(RuntimeError, match="a bug") as failure:
        trainer.train(total_updates=2)
    (note,) = failure.value.__notes__
    assert note.startswith("rl-train: nothing was saved, as a run cannot go on from the middle of")


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    class Block(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            (tmp_path / "summary.json").mkdir()

    with pytest.warns(UserWarning, match=r"summary\.json could not be written: Is a directory"):
        assert _trainer(tmp_path, callbacks=(Block(),)).train(total_updates=1).total_updates == 1


def test_nothing_is_saved_of_what_failed_before_its_first_step(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_tick(self, trainer: Trainer, activity: str) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        _trainer(tmp_path, callbacks=(Failing(),)).train(total_updates=1)
    assert not list_checkpoints(tmp_path / "checkpoints")
    assert not getattr(caught.value, "__notes__", [])


def test_what_fails_at_the_end_loses_nothing(tmp_path: Path) -> None:
    class Failing(Callback):
        def on_training_end(self, trainer: Trainer) -> None:
            raise RuntimeError("a bug in a callback")

    trainer = _trainer(tmp_path, callbacks=(Failing(),), test_envs=_identity_envs())
    with pytest.raises(RuntimeError, match="a bug") as failure:
        trainer.train(total_updates=1)
    (note,) = failure.value.__notes__
    assert note.startswith(f"rl-train: the state before it is in {tmp_path}/checkpoints/step-")
    assert json.loads((tmp_path / "summary.json").read_text())["final_evaluation"] is not None


def test_a_callback_cannot_train_its_own_trainer(tmp_path: Path) -> None:
    class Nested(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            trainer.train(total_updates=3)

    with pytest.raises(ConfigError, match="this Trainer is training already"):
        _trainer(callbacks=(Nested(),)).train(total_updates=2)


def test_a_session_that_could_not_begin_leaves_an_empty_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MissingExtraError("install it")

    with monkeypatch.context() as patch:
        patch.setattr("rl_train.trainer.trainer.open_loggers", fail)
        trainer = _trainer(tmp_path)
        with pytest.raises(MissingExtraError):
            trainer.train(total_updates=1)
    assert not list(tmp_path.iterdir())
    (tmp_path / "another's").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        trainer.train(total_updates=1)
    (tmp_path / "another's").unlink()
    assert _trainer(tmp_path).train(total_updates=1).total_updates == 1
    with monkeypatch.context() as patch:
        patch.setattr("rl_train.trainer.trainer.open_loggers", fail)
        recipe = (tmp_path / "recipe.toml").read_text()
        again = _trainer(tmp_path, config=TrainerConfig(log_every=1))
        again.resume()
        with pytest.raises(MissingExtraError):
            again.train(total_updates=2)
    # of a run that had begun, nothing is removed or changed
    assert (tmp_path / "summary.json").exists()
    assert (tmp_path / "recipe.toml").read_text() == recipe


def test_what_was_saved_before_a_session_that_could_not_begin_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MissingExtraError("install it")

    monkeypatch.setattr("rl_train.trainer.trainer.open_loggers", fail)
    trainer = _trainer(tmp_path)
    saved = trainer.save_checkpoint()
    with pytest.raises(MissingExtraError):
        trainer.train(total_updates=1)
    assert load_checkpoint(saved).step == 0


# Checkpoints


def test_checkpoints_are_kept_and_pruned(tmp_path: Path) -> None:
    config = TrainerConfig(checkpoint_every=10, keep_checkpoints=2)
    trainer = _trainer(tmp_path, config=config)
    trainer.train(total_updates=6)
    # Due at 10, 20, 30 and 40 steps, taken after the rollouts that reach them, and at the end.
    assert _plain_names(tmp_path / "checkpoints") == ["step-40", "step-48"]
    assert load_checkpoint(tmp_path / "checkpoints" / "step-40").resume_grade == "episode"


class Saves(Callback):
    """Notes at how many steps each checkpoint had been written when the next update ended."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_update_end(self, trainer: Trainer) -> None:
        assert trainer.run_dir is not None
        for path in list_checkpoints(trainer.run_dir / "checkpoints"):
            step = int(path.name.removeprefix("step-"))
            self.steps += [] if step in self.steps else [step]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"total_steps": 40 * ROWS}, range(16, 320, 16)),
        ({"total_updates": 40}, range(16, 320, 16)),
        ({"total_updates": 30}, range(16, 240, 16)),
        ({"total_steps": 10 * ROWS}, range(8, 80, 8)),  # one per update at most
    ],
)
def test_checkpoints_are_spread_over_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: dict[str, int],
    expected: Sequence[int],
) -> None:
    monkeypatch.setattr(budget, "_LEAST_INTERVAL", 1)
    saves = Saves()
    _trainer(tmp_path, callbacks=(saves,)).train(**counts, progress=False)
    assert saves.steps == list(expected)
    assert len(_plain_names(tmp_path / "checkpoints")) == 3


def test_checkpoints_keep_their_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_LEAST_INTERVAL", 3 * ROWS)
    first, second = Saves(), Saves()
    _trainer(tmp_path / "a", callbacks=(first,)).train(total_updates=20)
    assert first.steps == [24, 48, 72, 96, 120, 144]
    config = TrainerConfig(checkpoint_every="end")
    _trainer(tmp_path / "b", config=config, callbacks=(second,)).train(total_updates=20)
    assert second.steps == []
    assert _plain_names(tmp_path / "b" / "checkpoints") == ["step-160"]


def test_checkpoints_keep_their_distance_from_the_last_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_LEAST_INTERVAL", 3 * ROWS)
    saves = Saves()
    trainer = _trainer(tmp_path, callbacks=(saves,))
    trainer.train(total_updates=2)
    trainer.train(total_updates=10)
    assert saves.steps == [16, 40, 64]


def test_checkpoints_that_hold_a_buffer_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_LEAST_INTERVAL", 1)
    trainer = _trainer(tmp_path)
    goal = Budget("updates", 100)

    def count() -> int:
        trainer.state.updates = trainer.collector.total_steps = 0
        times = budget.CheckpointInterval(trainer, goal)
        due = 0
        for _ in range(100):
            trainer.state.updates += 1
            trainer.collector.total_steps += 1
            due += times.is_due(trainer)
        return due

    assert count() == 20
    monkeypatch.setattr(trainer.storage, "rollout_steps", None)
    assert count() == 10
    trainer.config = replace(trainer.config, checkpoint_replay=False)
    assert count() == 20


def test_a_step_is_saved_once(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train(total_updates=1)
    (path,) = list_checkpoints(tmp_path / "checkpoints")
    written = (path / "manifest.json").stat().st_mtime_ns
    assert trainer.save_checkpoint() == path
    assert (path / "manifest.json").stat().st_mtime_ns == written
    shutil.rmtree(path)  # by hand
    assert load_checkpoint(trainer.save_checkpoint()).step == ROWS


def test_a_checkpoint_of_an_earlier_state_stays(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, config=TrainerConfig(keep_checkpoints=1))
    trainer.train(total_updates=1)
    earlier = cast("StateDict", copy_state(trainer.state_dict()))
    trainer.train(total_updates=2)
    trainer.load_state_dict(earlier)
    assert load_checkpoint(trainer.save_checkpoint()).step == ROWS


def test_a_better_state_of_the_same_step_takes_the_place_of_the_best(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train(total_updates=1)
    assert trainer.directory is not None
    for score, expected in ((1.0, 1.0), (2.0, 2.0), (1.5, 2.0), (2.0, 2.0)):
        trainer.directory.save_best(ROWS, {"score": score}, score, recipe=trainer.recipe)
        (best,) = list_checkpoints(tmp_path / "best")
        assert load_checkpoint(best).state == {"score": expected}


def test_the_folder_of_a_checkpoint_is_no_run_directory(tmp_path: Path) -> None:
    _trainer(tmp_path).train(total_updates=1)
    for folder in (tmp_path / "checkpoints", tmp_path / "checkpoints" / "step-8"):
        before = _plain_names(folder)
        trainer = _trainer(folder)
        trainer.resume()
        with pytest.raises(ConfigError, match="is not empty"):
            trainer.train(total_updates=2)
        assert _plain_names(folder) == before


def test_a_resumed_run_begins_where_the_saved_one_ended(tmp_path: Path) -> None:
    config = TrainerConfig(scale_rewards=True, log_every=1)
    saved = _trainer(tmp_path, config=config)
    saved.train(total_updates=5)
    expected = copy_state(saved.state_dict())
    resumed = _trainer(tmp_path, config=config, seed=2, weights=2)
    with pytest.raises(AssertionError):
        check_same_state(resumed.state_dict(), expected)
    checkpoint = resumed.resume()
    assert checkpoint.path == tmp_path / "checkpoints" / "step-40"
    check_same_state(resumed.state_dict(), expected)
    assert (resumed.total_steps, resumed.updates, resumed.seed) == (40, 5, 1)
    assert resumed.collector.total_episodes == saved.collector.total_episodes == 8
    check_same_state(
        dict(resumed.algorithm.actor.state_dict()), dict(saved.algorithm.actor.state_dict())
    )
    check_same_state(
        resumed.algorithm.gradients.state_dict(), saved.algorithm.gradients.state_dict()
    )
    result = resumed.train(total_updates=7)
    assert (result.total_steps, result.total_updates) == (56, 7)
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [
        *(8, 16, 24, 32, 40),
        *(48, 56),
    ]
    assert _plain_names(tmp_path / "checkpoints") == ["step-40", "step-56"]


def test_lines_after_the_checkpoint_are_replaced(tmp_path: Path) -> None:
    config = TrainerConfig(log_every=1)
    _trainer(tmp_path, config=config).train(total_updates=2)
    logger = JsonlLogger(tmp_path / "metrics.jsonl", append=True)
    logger.log(24, {"train/episode_return": -1.0})  # written, but its step was never saved
    logger.close()
    resumed = _trainer(tmp_path, config=config)
    resumed.resume()
    resumed.train(total_updates=3)
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [8, 16, 24]
    assert lines[-1]["train/episode_return"] != -1.0


def test_the_checkpoint_resumed_from_is_never_pruned(tmp_path: Path) -> None:
    config = TrainerConfig(checkpoint_every=8, keep_checkpoints=1)
    _trainer(tmp_path, config=config).train(total_updates=2)
    resumed = _trainer(tmp_path, config=config)
    resumed.resume()
    resumed.train(total_updates=5)
    assert _plain_names(tmp_path / "checkpoints") == ["step-16", "step-40"]


def test_a_damaged_checkpoint_is_set_aside_and_its_step_saved_again(tmp_path: Path) -> None:
    config = TrainerConfig(checkpoint_every=8)
    _trainer(tmp_path, config=config).train(total_updates=3)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-24" / "state.json").write_text("{}")
    resumed = _trainer(tmp_path, config=config)
    with pytest.warns(UserWarning, match="step-24 is damaged, so step-16 is used: "):
        checkpoint = resumed.resume()
    assert checkpoint.step == 16
    assert [skipped.path.name for skipped in checkpoint.skipped] == ["step-24"]
    assert "step-24" in _plain_names(checkpoints)  # until the run goes on
    resumed.train(total_updates=4)
    assert [path.name for path in list_checkpoints(checkpoints)] == [
        *("step-8", "step-16", "step-24", "step-32")
    ][1:]
    load_checkpoint(checkpoints / "step-24")
    assert sum(name.startswith("damaged-step-24") for name in _plain_names(checkpoints)) == 1


def test_a_resume_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run: it has no folder 'checkpoints'"):
        _trainer(tmp_path).resume()


def test_a_checkpoint_of_other_networks_is_refused(tmp_path: Path) -> None:
    _trainer(tmp_path).train(total_updates=1)
    other = _trainer(tmp_path, envs=counting_envs([[2], [3]], [True, True]))
    with pytest.raises(CheckpointError, match="algorithm/modules: the saved state has no"):
        other.resume()


def _damaged(
    state: Mapping[str, object], path: str = ""
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the state with each of its entries removed, and with each of another type."""
    for key, value in state.items():
        here = f"{path}/{key}"
        if here == "/collector/envs":
            continue  # what environments save is theirs to check
        yield f"{here} removed", {name: item for name, item in state.items() if name != key}
        yield f"{here} retyped", {**state, key: 1 if isinstance(value, str) else "text"}
        if isinstance(value, Mapping):
            for what, inner in _damaged(value, here):
                yield what, {**state, key: inner}


def test_rollouts_are_not_left_out_of_checkpoints() -> None:
    with pytest.raises(ConfigError, match="checkpoint_replay=False has no effect on rollouts"):
        _trainer(config=TrainerConfig(checkpoint_replay=False))


def test_every_damage_to_a_saved_state_is_told() -> None:
    def new() -> Trainer:
        return _trainer(
            envs=WalkVecEnv(NUM_ENVS), config=TrainerConfig(scale_rewards=True), remembers=True
        )

    trainer = new()
    trainer.train(total_updates=2)
    trainer.collector.collect(3 * NUM_ENVS, into=trainer.storage)  # in the middle of a rollout
    state = trainer.state_dict()
    new().load_state_dict(state)
    wrong = []
    for what, damaged in _damaged(state):
        try:
            trainer.load_state_dict(damaged)  # type: ignore[arg-type]  # damaged on purpose
            wrong.append(f"{what}: loaded")
        except CheckpointError:
            pass
        except Exception as error:
            wrong.append(f"{what}: {error!r}")
    assert not wrong, "\n".join(wrong)


def test_a_checkpoint_of_another_number_of_environments_is_refused(tmp_path: Path) -> None:
    _trainer(tmp_path / "run").train(total_updates=1)
    envs = make_gym_vec(partial(IdentityEnv, spaces.Discrete(3), 5), NUM_ENVS + 1)
    other = _trainer(tmp_path / "run", envs=envs)
    with pytest.raises(CheckpointError, match="has 2 environments, but this one has 3"):
        other.resume()


def test_a_run_goes_on_in_the_environments_that_it_began_in(tmp_path: Path) -> None:
    def trainer(**options: Any) -> Trainer:
        envs = make_vec("FrozenLake-v1", NUM_ENVS, **options)
        return _trainer(tmp_path / "run", envs=envs)

    trainer(vectorization="sync").train(total_updates=1)
    with pytest.raises(
        ConfigError, match=r"^env\.env_kwargs is \{'is_slippery': False\}, but None in"
    ):
        trainer(vectorization="sync", env_kwargs={"is_slippery": False}).resume()
    trainer(vectorization="sync", check=False).resume()


def test_two_runs_in_one_directory_are_kept_apart(tmp_path: Path) -> None:
    first = _trainer(tmp_path / "run")
    first.train(total_updates=1)
    second = _trainer(tmp_path / "run")
    second.resume()

    class Intruder(Callback):
        def on_update_end(self, trainer: Trainer) -> bool | None:
            with pytest.raises(ConfigError, match="in use by another run"):
                second.train(total_updates=3)
            return None

    first.callbacks = (Intruder(),)
    first.train(total_updates=2)
    with pytest.raises(ConfigError, match=r"its step-16 is newer than what this Trainer saved or"):
        second.train(total_updates=3)  # free again, but not what was resumed
    with pytest.raises(ConfigError, match=r"its step-16 is newer"):
        second.save_checkpoint()
    second.resume()
    second.train(total_updates=3)
    assert second.updates == 3
    assert _plain_names(tmp_path / "run" / "checkpoints") == ["step-16", "step-24", "step-8"]


def test_nothing_is_saved_into_the_directory_of_another_run(tmp_path: Path) -> None:
    _trainer(tmp_path).train(total_updates=2)
    other = _trainer(tmp_path, seed=7)
    for call in (other.save_checkpoint, partial(other.train, total_updates=1)):
        with pytest.raises(ConfigError, match="is not empty; choose another, or continue its run"):
            call()
    assert _plain_names(tmp_path / "checkpoints") == ["step-16"]
    assert not (tmp_path / ".lock").exists()


def test_another_state_of_a_saved_step_takes_its_place(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train(total_updates=1)
    saved = tmp_path / "checkpoints" / "step-8"
    node = saved.stat().st_ino
    assert trainer.save_checkpoint() == saved
    assert saved.stat().st_ino == node  # nothing has changed, so it was not written again
    resumed = _trainer(tmp_path)
    resumed.resume()
    resumed.save_checkpoint()
    assert saved.stat().st_ino == node
    resumed.algorithm.update_algorithm_parameter("learning_rate", 0.125)
    resumed.save_checkpoint()
    again = _trainer(tmp_path)
    again.resume()
    assert again.algorithm.hyper["learning_rate"].item() == 0.125
    assert _plain_names(tmp_path / "checkpoints") == ["step-8"]


def test_a_run_goes_on_from_a_checkpoint_whose_replacement_was_interrupted(
    tmp_path: Path,
) -> None:
    _trainer(tmp_path).train(total_updates=2)
    saved = tmp_path / "checkpoints" / "step-16"
    saved.rename(saved.with_name(f"replaced-step-16-{'0' * 32}"))
    resumed = _trainer(tmp_path)
    resumed.resume()
    assert resumed.total_steps == 16
    resumed.save_checkpoint()
    assert resumed.train(total_updates=3).total_updates == 3
    assert _plain_names(tmp_path / "checkpoints") == ["step-16", "step-24"]


def test_the_weights_after_the_last_update_are_saved_whatever_callbacks_save(
    tmp_path: Path,
) -> None:
    class Saving(Callback):
        def on_update_start(self, trainer: Trainer) -> None:
            trainer.save_checkpoint()

    trainer = _trainer(tmp_path, callbacks=(Saving(),))
    trainer.train(total_updates=2)
    resumed = _trainer(tmp_path)
    resumed.resume()
    check_same_state(resumed.algorithm.state_dict(), trainer.algorithm.state_dict())


def test_a_resumed_run_has_the_seed_and_the_settings_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledFunctions, "set_mode", lambda *_: None)
    config = TrainerConfig(compile="auto")
    first = _trainer(tmp_path, config=config)
    first.recipe = replace(first.recipe, resolved={"compile": "auto"})  # a run long enough for it
    first.train(total_updates=1)
    resumed = _trainer(tmp_path, config=config, seed=None)
    resumed.resume()
    assert resumed.recipe.seed == 1
    resumed.train(total_updates=2)  # for which compiling would not pay
    assert resumed.recipe.resolved["compile"] == "auto"
    assert first.recipe.resolved["total_updates"] == 1
    longer = {**first.recipe.resolved, "total_updates": 2}
    assert resumed.recipe == replace(first.recipe, resolved=longer)


def test_graphs_are_adopted_before_an_evaluation_that_may_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(CompiledFunctions, "adopt", lambda _: seen.append("adopted"))

    class Watching(Callback):
        def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> None:
            seen.append("evaluated")

    _trainer(
        config=TrainerConfig(test_every=1, num_test_episodes=1),
        test_envs=_identity_envs(),
        callbacks=(Watching(),),
    ).train(total_updates=2)
    assert seen == ["adopted", "evaluated"] * 2


@pytest.mark.parametrize("count", [1.5, True, "many", math.nan])
def test_a_count_is_a_whole_number(count: object) -> None:
    with pytest.raises(ConfigError, match="total_steps must be a whole number"):
        _trainer().train(total_steps=count)  # type: ignore[arg-type]  # wrong on purpose


def test_parts_of_other_types_are_refused() -> None:
    built = _trainer()
    envs, algorithm, storage = built.envs, built.algorithm, built.storage
    with pytest.raises(ConfigError, match="algorithm: expected an instance of Algorithm, got Ref"):
        Trainer(envs, storage, algorithm)  # type: ignore[arg-type]  # swapped on purpose
    with pytest.raises(ConfigError, match="storage: expected an instance of Storage, got NoneT"):
        Trainer(envs, algorithm, None)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match="config: expected an instance of Trainer"):
        Trainer(envs, algorithm, storage, config={"a": 1})  # type: ignore[arg-type]  # wrong
    with pytest.raises(ConfigError, match="config: expected ToyConfig, got TrainerConfig"):
        ToyActorCritic(algorithm.actor, TrainerConfig())  # type: ignore[arg-type]  # wrong
    with pytest.raises(ConfigError, match="actor: expected Actor, got NoneType"):
        ToyActorCritic(None)  # type: ignore[arg-type]  # wrong on purpose


def test_a_call_that_waits_for_the_compiler_says_so_and_what_follows_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Callable[[], bool]] = []
    seen: list[str] = []

    @contextmanager
    def in_background(_: CompiledFunctions, is_stopping: Callable[[], bool]) -> Iterator[None]:
        asked.append(is_stopping)
        yield

    class Waiting(Callback):
        def on_tick(self, trainer: Trainer, activity: str) -> None:
            seen.append(activity)

        def on_update_start(self, trainer: Trainer) -> None:
            seen.append("update")
            assert not asked[0]()  # as a graph does that is not there yet

    monkeypatch.setattr(CompiledFunctions, "in_background", in_background)
    _trainer(callbacks=(Waiting(),)).train(total_updates=2, progress=False)
    first = seen.index("update")
    assert set(seen[:first]) == {"collecting"}
    assert seen[first + 1 : first + 3] == ["compiling", "collecting"]


def test_compiling_without_a_compiler_is_refused_before_anything_is_collected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    cache = GraphCache(tmp_path / "graphs")  # in which nothing is compiled yet
    monkeypatch.setattr(GraphCache, "shared", lambda: cache)
    trainer = _trainer(config=TrainerConfig(compile="on"))
    with pytest.raises(ConfigError, match=r"compile='on' needs a C\+\+ compiler and finds none"):
        trainer.train(total_updates=1)
    assert trainer.total_steps == 0


@pytest.mark.parametrize(
    ("remembers", "num_steps", "gradient_steps"),
    [(False, 64, 7_500), (True, 8, 7_500), (True, 32, 7_500), (True, 64, 15_000)],
)
def test_long_runs_compile_and_those_of_long_sequences_later(
    remembers: bool, num_steps: int, gradient_steps: int
) -> None:
    trainer = _trainer(storage=ReferenceRolloutStorage(num_steps), remembers=remembers)
    pays_after = gradient_steps // 2  # one pass over two minibatches
    for updates, expected in ((pays_after, "auto"), (pays_after - 1, "off")):
        mode = worthwhile_compile_mode(
            trainer.algorithm, trainer.storage, updates, num_steps * NUM_ENVS
        )
        assert mode == expected


def test_a_long_run_is_not_compiled_by_a_torch_that_was_not_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_train.trainer.setup.worthwhile_compile_mode", lambda *_: "auto")
    monkeypatch.setattr("rl_train.trainer.setup.is_supported", lambda: False)
    trainer = _trainer()
    with pytest.warns(RuntimeWarning, match="this run is not compiled; install one of them, or"):
        trainer.train(total_updates=1, progress=False)
    assert trainer.recipe.resolved["compile"] == "off"


def test_a_live_change_survives_a_resume(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.algorithm.update_algorithm_parameter("learning_rate", Linear(0.5, 0.1))
    trainer.algorithm.update_algorithm_parameter("gamma", 0.5)
    trainer.train(total_updates=2)
    resumed = _trainer(tmp_path)
    resumed.resume()
    assert resumed.algorithm.schedules["learning_rate"] == Linear(0.5, 0.1)
    assert float(resumed.algorithm.hyper["gamma"]) == 0.5
    resumed.train(total_updates=4)
    rate = float(resumed.algorithm.hyper["learning_rate"])
    assert rate == pytest.approx(0.2)  # of the fourth update, after three quarters of the run


def test_options_that_change_are_logged() -> None:
    class ChangesGamma(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            if trainer.total_steps == 2 * ROWS:
                trainer.algorithm.update_algorithm_parameter("gamma", 0.25)

    recorder = Recorder()
    trainer = _trainer(
        config=TrainerConfig(log_every=1),
        algorithm=ToyConfig(learning_rate=Linear(0.4, 0.0)),
        callbacks=(ChangesGamma(),),
        loggers=(recorder,),
    )
    trainer.train(total_updates=4, progress=False)
    logged = [
        {name: value for name, value in metrics.items() if name.startswith("algorithm/")}
        for _, metrics in recorder.lines
    ]
    rates = [{"algorithm/learning_rate": pytest.approx(rate)} for rate in (0.4, 0.3, 0.2, 0.1)]
    assert logged[0] == rates[0]
    assert logged[1:] == [{**rate, "algorithm/gamma": 0.25} for rate in rates[1:]]


@pytest.mark.parametrize(
    "counts", [{"total_steps": 4 * ROWS}, {"total_updates": 4}, {"total_episodes": 6}]
)
def test_schedules_begin_at_their_start_and_leave_something_for_the_last_update(
    counts: dict[str, int],
) -> None:
    class Rates(Callback):
        def __init__(self) -> None:
            self.seen: list[float] = []

        def on_update_end(self, trainer: Trainer) -> bool | None:
            self.seen.append(float(trainer.algorithm.hyper["learning_rate"]))
            return None

    rates = Rates()
    config = ToyConfig(learning_rate=Linear(0.4, 0.0))
    _trainer(algorithm=config, callbacks=(rates,)).train(**counts, progress=False)
    if "total_episodes" in counts:  # 0, 2 and 4 of 6 episodes are over before an update
        assert rates.seen == pytest.approx([0.4, 0.4, 0.4 * 4 / 6, 0.4 * 2 / 6])
    else:
        assert rates.seen == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_loading_into_a_trainer_that_has_run_leaves_nothing_of_it(tmp_path: Path) -> None:
    saved, used = _trainer(), _trainer(seed=2, weights=2)
    saved.train(total_updates=4)
    used.train(total_updates=6)
    state = copy_state(saved.state_dict())
    assert isinstance(state, Mapping)
    used.load_state_dict(state)
    check_same_state(used.state_dict(), state)


def test_an_interrupted_rollout_is_left_out_when_its_episodes_are_lost() -> None:
    trainer = _trainer()
    trainer.train(total_updates=1)
    trainer.collector.collect(3 * NUM_ENVS, into=trainer.storage)
    state = copy_state(trainer.state_dict())
    assert isinstance(state, Mapping)
    resumed = _trainer()
    resumed.load_state_dict(state)
    assert len(resumed.storage) == 0
    assert resumed.total_steps == ROWS + 6


@pytest.mark.parametrize("remembers", [False, True])
def test_environments_that_can_be_saved_make_a_resume_exact(
    tmp_path: Path, remembers: bool
) -> None:
    """Bit for bit what an uninterrupted run has: weights, moments, statistics, rollouts, noise."""

    def new(run_dir: Path | None = None, seed: int = 1) -> Trainer:
        config = TrainerConfig(scale_rewards=True)
        return _trainer(
            run_dir,
            envs=WalkVecEnv(NUM_ENVS),
            config=config,
            remembers=remembers,
            seed=seed,
            weights=seed,
        )

    whole = new()
    whole.train(total_updates=40)
    saved = new(tmp_path)
    assert saved.resume_grade == "exact"  # before its first step too
    saved.train(total_updates=20)
    resumed = new(tmp_path, seed=2)
    checkpoint = resumed.resume()
    assert checkpoint.resume_grade == "exact"
    resumed.train(total_updates=40)
    check_same_state(resumed.state_dict(), whole.state_dict())
    # In the middle of a rollout too.
    whole.collector.collect(3 * NUM_ENVS, into=whole.storage)
    state = copy_state(whole.state_dict())
    assert isinstance(state, Mapping)
    resumed = new(seed=3)
    resumed.load_state_dict(state)
    for trainer in (whole, resumed):
        trainer.train(total_updates=42)
    check_same_state(resumed.state_dict(), whole.state_dict())


def test_a_killed_run_logs_after_its_resume_what_it_would_have_logged(tmp_path: Path) -> None:
    """Metrics are means over all updates since the last line, those before the kill included."""

    class Killed(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            if trainer.updates == 5:
                raise KeyboardInterrupt

    def new(recorder: Recorder, *callbacks: Callback) -> Trainer:
        run_dir = None if recorder is untouched else tmp_path
        config = TrainerConfig(log_every=3 * ROWS, checkpoint_every=2 * ROWS)
        return _trainer(
            run_dir,
            envs=WalkVecEnv(NUM_ENVS),
            config=config,
            loggers=(recorder,),
            callbacks=callbacks,
        )

    untouched, first, second = Recorder(), Recorder(), Recorder()
    new(untouched).train(total_updates=9)
    with pytest.raises(KeyboardInterrupt):
        new(first, Killed()).train(total_updates=9)
    resumed = new(second)
    assert resumed.resume().step == 4 * ROWS
    resumed.train(total_updates=9)
    assert [step for step, _ in second.lines] == [6 * ROWS, 9 * ROWS]
    assert _lines(first, second) == _lines(untouched)


@pytest.mark.parametrize("turn", ["on_update_end", "on_evaluation", "on_log"])
def test_a_checkpoint_that_a_callback_saves_goes_on_from_there(tmp_path: Path, turn: str) -> None:
    def save_and_die(trainer: Trainer, *_: object) -> None:
        if trainer.updates == 4:
            trainer.save_checkpoint()
            raise KeyboardInterrupt

    killing = type("Killing", (Callback,), {turn: lambda self, *given: save_and_die(*given)})

    def new(run_dir: Path | None, *callbacks: Callback) -> Trainer:
        return _trainer(
            run_dir,
            envs=WalkVecEnv(NUM_ENVS),
            config=TrainerConfig(log_every=3 * ROWS, test_every=2, num_test_episodes=2),
            test_envs=WalkVecEnv(NUM_ENVS),
            callbacks=callbacks,
        )

    whole, killed, resumed = (
        new(tmp_path / "a"),
        new(tmp_path / "b", killing()),
        new(tmp_path / "b"),
    )
    whole.train(total_updates=6)
    with pytest.raises(KeyboardInterrupt):
        killed.train(total_updates=6)
    resumed.resume()
    resumed.train(total_updates=6)
    check_same_state(resumed.state_dict(), whole.state_dict())
    lines = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("a", "b")]
    clock = {"time": None, "steps_per_second": None}
    assert [{**line, **clock} for line in lines[1]] == [{**line, **clock} for line in lines[0]]
    assert [line["step"] for line in lines[0]] == [2 * ROWS, 3 * ROWS, 4 * ROWS, 6 * ROWS]


class Counting(Callback):
    """Remembers how many updates it saw."""

    def __init__(self) -> None:
        self.count = 0

    def on_update_end(self, trainer: Trainer) -> None:
        self.count += 1

    def state_dict(self) -> StateDict:
        return {"count": self.count}

    def load_state_dict(self, state: StateDict) -> None:
        self.count = StateReader(state, "counting").count("count")


def test_callbacks_go_on_with_what_they_remembered(tmp_path: Path) -> None:
    _trainer(tmp_path, callbacks=(Counting(), Callback(), Counting())).train(total_updates=2)
    one, other = Counting(), Counting()
    resumed = _trainer(tmp_path, callbacks=(one, other))
    resumed.resume()
    resumed.train(total_updates=3)
    assert (one.count, other.count) == (3, 3)
    alone = _trainer(tmp_path, callbacks=(Counting(),))
    with pytest.warns(UserWarning, match="was saved with a callback Counting 2, which it goes on"):
        alone.resume()


def test_methods_that_nothing_calls_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Mine\._on_training_end: nothing calls it.*'on_train"):
        type("Mine", (Callback,), {"_on_training_end": lambda self: None})
    with pytest.raises(ConfigError, match=r"Mine\.on_updates_end: nothing calls it.*on_update_end"):
        type("Mine", (Callback,), {"on_updates_end": lambda self, trainer: None})
    with pytest.raises(
        ConfigError, match=r"Mine.on_log is called with \(self, trainer, metrics\): too many pos"
    ):
        type("Mine", (Callback,), {"on_log": lambda self, trainer: None})


def test_what_updates_answer_is_averaged_between_lines() -> None:
    seen: list[float] = []

    class Answering(ToyActorCritic):
        def update(self, storage: Storage[RolloutBatch]) -> dict[str, float]:
            seen.append(super().update(storage)["value/advantage"])
            return {"value/advantage": seen[-1]}

    envs, recorder = _identity_envs(), Recorder()
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    trainer = Trainer(
        envs,
        Answering(actor),
        ReferenceRolloutStorage(NUM_STEPS),
        config=TrainerConfig(log_every=3 * ROWS),
        seed=1,
        loggers=(recorder,),
    )
    trainer.train(total_updates=6)
    logged = [line["value/advantage"] for _, line in recorder.lines]
    assert logged == pytest.approx([sum(seen[:3]) / 3, sum(seen[3:]) / 3])


# Runs that are stopped


class Stopping(WalkVecEnv):
    """Asks the run to stop in the middle of one of its steps."""

    def __init__(self, at_step: int) -> None:
        super().__init__(NUM_ENVS)
        self.steps_left = at_step
        self.trainer: Trainer | None = None

    def step(self, action: ArrayLike) -> EnvStep:
        self.steps_left -= 1
        if self.steps_left == 0:
            assert self.trainer is not None
            self.trainer.stop()
        return super().step(action)


def _stopping_trainer(
    run_dir: Path | None,
    at_step: int,
    *,
    at_test_step: int = 0,
    loggers: tuple[Logger, ...] = (),
    remembers: bool = False,
) -> Trainer:
    envs, test_envs = Stopping(at_step), Stopping(at_test_step)
    trainer = _trainer(
        run_dir,
        envs=envs,
        algorithm=ToyConfig(learning_rate=Linear(0.05, 0.0)),
        config=TrainerConfig(scale_rewards=True, log_every=20, test_every=2, num_test_episodes=2),
        test_envs=test_envs,
        loggers=loggers,
        remembers=remembers,
    )
    envs.trainer = test_envs.trainer = trainer
    return trainer


def _lines(*recorders: Recorder) -> str:
    """Write out what was logged, to the last bit, but for the speed."""
    return repr(
        [
            (step, {name: value for name, value in line.items() if name != "steps_per_second"})
            for recorder in recorders
            for step, line in recorder.lines
        ]
    )


@functools.cache
def _whole_run(remembers: bool) -> tuple[Trainer, Recorder]:
    untouched = Recorder()
    whole = _stopping_trainer(None, 0, loggers=(untouched,), remembers=remembers)
    whole.train(total_steps=5 * ROWS - 3)  # reached in the middle of the last rollout
    return whole, untouched


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("at_step", [1, 2, 4, 6, 8, 11, 19, 20])
def test_a_run_that_is_stopped_in_a_rollout_goes_on_as_if_it_had_not_been(
    tmp_path: Path, at_step: int, remembers: bool
) -> None:
    whole, untouched = _whole_run(remembers)
    first, second = Recorder(), Recorder()
    stopped = _stopping_trainer(tmp_path, at_step, loggers=(first,), remembers=remembers)
    result = stopped.train(total_steps=5 * ROWS - 3)
    # A rollout that has become whole is learned from.
    assert result.total_steps == at_step * NUM_ENVS
    assert result.total_updates == at_step // NUM_STEPS
    assert result.evaluation is None
    resumed = _stopping_trainer(tmp_path, 0, loggers=(second,), remembers=remembers)
    resumed.resume()
    if at_step < 5 * NUM_STEPS:
        resumed.train(total_steps=5 * ROWS - 3)
    check_same_state(resumed.state_dict(), whole.state_dict())
    assert _lines(first, second) == _lines(untouched)


def test_an_evaluation_that_is_broken_off_comes_after_the_resume(tmp_path: Path) -> None:
    untouched, first, second = Recorder(), Recorder(), Recorder()
    whole = _stopping_trainer(None, 0, loggers=(untouched,))
    whole.train(total_updates=4)
    stopped = _stopping_trainer(tmp_path, 0, at_test_step=1, loggers=(first,))
    assert stopped.train(total_updates=4).total_updates == 2
    resumed = _stopping_trainer(tmp_path, 0, loggers=(second,))
    resumed.resume()
    resumed.train(total_updates=4)
    check_same_state(resumed.state_dict(), whole.state_dict())
    assert _lines(first, second) == _lines(untouched)
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [16, 24, 32]


def test_an_evaluation_comes_after_the_resume_where_episodes_are_lost_too(tmp_path: Path) -> None:
    class Impatient(Callback):
        def on_tick(self, trainer: Trainer, activity: str) -> None:
            if activity.startswith("evaluating"):
                trainer.stop()

    options: dict[str, Any] = {
        "config": TrainerConfig(test_every=1, num_test_episodes=2),
        "test_envs": _identity_envs,
    }
    stopped = _trainer(tmp_path, callbacks=(Impatient(),), **options)
    assert stopped.train(total_updates=2).total_updates == 1
    diary = Diary()
    resumed = _trainer(tmp_path, callbacks=(diary,), **options)
    assert resumed.resume().resume_grade == "episode"
    resumed.train(total_updates=2)
    assert diary.turns == [
        *("start 2 updates", "evaluation 2", "log 8"),
        *("update 2", "evaluation 2", "log 16", "end"),
    ]


def test_a_stopped_session_goes_on_without_a_checkpoint_too() -> None:
    whole, stopped = _stopping_trainer(None, 0), _stopping_trainer(None, 6)
    whole.train(total_updates=4)
    assert stopped.train(total_updates=4).total_steps == 6 * NUM_ENVS
    stopped.train(total_updates=4)
    check_same_state(stopped.state_dict(), whole.state_dict())


def test_a_rollout_whose_episodes_are_lost_is_begun_anew() -> None:
    class Impatient(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            trainer.stop()

    trainer = _trainer(callbacks=(Impatient(),))
    trainer.train(total_updates=3)
    trainer.collector.collect(3 * NUM_ENVS, trainer.storage)
    trainer.state.iteration.begin(trainer.counts)
    resumed = _trainer()
    state = copy_state(trainer.state_dict())
    assert isinstance(state, Mapping)
    resumed.load_state_dict(state)
    assert not resumed.state.iteration.start
    assert resumed.train(total_updates=2).total_steps == 2 * ROWS + 3 * NUM_ENVS


def test_a_warm_up_that_is_broken_off_goes_on_where_it_ended(tmp_path: Path) -> None:
    class RandomActor(ToyActor):
        def random_actions(
            self,
            num_envs: int,
            generator: torch.Generator,
            observation: Observation | None = None,
        ) -> torch.Tensor:
            return torch.randint(0, 2, (num_envs,), generator=generator)

    class Looking(PolicyLossAddOn):
        seen: tuple[float, ...] = ()

        @property
        def warm_up_steps(self) -> int:
            return 5 * NUM_ENVS

        def observe(self, observation: Observation) -> None:
            assert isinstance(observation, torch.Tensor)
            self.seen += tuple(observation.flatten().tolist())

        def compute_loss_term(
            self,
            batch: RolloutBatch | ReplayBatch,
            distribution: Distribution,
            info: Mapping[str, torch.Tensor],
        ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
            return torch.zeros(()), {}

    def new(at_step: int, run_dir: Path | None = None) -> tuple[Trainer, Looking]:
        envs = Stopping(at_step)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            actor = RandomActor(envs.single_observation_space, envs.single_action_space)
        looking = Looking()
        algorithm = ToyActorCritic(actor, add_ons=looking)
        storage = ReferenceRolloutStorage(NUM_STEPS)
        envs.trainer = Trainer(envs, algorithm, storage, seed=1, run_dir=run_dir)
        return envs.trainer, looking

    (whole, all_at_once), (stopped, first) = new(0), new(2, tmp_path)
    whole.train(total_updates=2)
    assert stopped.train(total_updates=2).total_steps == 0
    resumed, second = new(0, tmp_path)
    resumed.resume()
    resumed.train(total_updates=2)
    assert len(first.seen) == 2 * NUM_ENVS * 2
    assert first.seen + second.seen == all_at_once.seen
    check_same_state(resumed.state_dict(), whole.state_dict())


# Seeds and threads


def test_the_seed_decides_the_whole_run() -> None:
    runs = [_trainer(seed=seed, remembers=True) for seed in (1, 1, 2)]
    for run in runs:
        run.train(total_updates=3)
    check_same_state(runs[1].state_dict(), runs[0].state_dict())
    with pytest.raises(AssertionError):
        check_same_state(runs[2].algorithm.state_dict(), runs[0].algorithm.state_dict())


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    for seed in (None, 1):
        trainer = _trainer(seed=seed)
        trainer.train(total_updates=1)
        assert trainer.seed >= 0
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_environments_keep_their_own() -> None:
    def first() -> object:
        envs = make_gym_vec(partial(IdentityEnv, spaces.Box(-1.0, 1.0, (2,))), NUM_ENVS, 5)
        trainer = _trainer(envs=envs, seed=None)
        trainer.collector.collect(2, into=trainer.storage)
        assert isinstance(trainer.storage, HasSlices)
        return trainer.storage.get_all_buffer_data()["observation"].tolist()

    assert first() == first()


def test_threads_are_chosen_while_training_and_put_back() -> None:
    class Threads(Callback):
        seen = 0

        def on_update_end(self, trainer: Trainer) -> bool | None:
            self.seen = torch.get_num_threads()
            return None

    before = torch.get_num_threads()
    for given, expected in ((None, 1), (3, 3)):
        callback = Threads()
        _trainer(config=TrainerConfig(num_threads=given), callbacks=(callback,)).train(
            total_updates=1
        )
        assert callback.seen == expected
        assert torch.get_num_threads() == before


# Signals and progress


@pytest.fixture
def _usual_interrupts() -> Iterator[None]:
    with usual_interrupts():
        yield


class _Interrupts(Callback):
    """Sends the signal of Ctrl-C so many times after the second update."""

    def __init__(self, times: int) -> None:
        self._times = times

    def on_update_end(self, trainer: Trainer) -> None:
        if trainer.updates == 2:
            for _ in range(self._times):
                signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("_usual_interrupts")
def test_ctrl_c_ends_the_run_with_what_was_learned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer = _trainer(tmp_path, test_envs=_identity_envs, callbacks=(_Interrupts(1),))
    result = trainer.train(total_updates=5)
    assert (result.stopped, result.total_updates, result.evaluation) == (True, 2, None)
    assert signal.getsignal(signal.SIGINT) is before
    assert "stopping and saving a checkpoint; once more stops without" in capfd.readouterr().err
    resumed = _trainer(tmp_path, test_envs=_identity_envs)
    assert resumed.resume().step == result.total_steps
    result = resumed.train(total_updates=5)
    assert (result.stopped, result.total_updates) == (False, 5)


@pytest.mark.usefixtures("_usual_interrupts")
def test_ctrl_c_counts_before_the_run_has_begun() -> None:
    class Interrupts(Callback):
        def on_training_start(self, trainer: Trainer, target: int, unit: str) -> None:
            signal.raise_signal(signal.SIGINT)

    result = _trainer(callbacks=(Interrupts(),)).train(total_updates=5)
    assert (result.stopped, result.total_steps) == (True, 0)


@pytest.mark.usefixtures("_usual_interrupts")
def test_ctrl_c_promises_no_checkpoint_without_a_run_directory(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert _trainer(callbacks=(_Interrupts(1),)).train(total_updates=5).stopped
    assert capfd.readouterr().err.splitlines()[-1] == "stopping; once more stops at once"


@pytest.mark.usefixtures("_usual_interrupts")
def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path, callbacks=(_Interrupts(2),))
    with pytest.raises(KeyboardInterrupt):
        trainer.train(total_updates=5)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_signals_that_others_handle_are_left_alone() -> None:
    handled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: handled.append(number))
    try:
        result = _trainer(callbacks=(_Interrupts(1),)).train(total_updates=3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert handled == [signal.SIGINT]
    assert result.total_updates == 3


def test_in_another_thread_signals_are_left_alone() -> None:
    results: list[TrainingResult] = []
    trainer = _trainer()
    thread = threading.Thread(target=lambda: results.append(trainer.train(total_updates=2)))
    thread.start()
    thread.join()
    assert [result.total_updates for result in results] == [2]


@pytest.mark.parametrize("progress", [True, "log", False])
def test_progress_is_shown_where_it_is_asked_for(
    progress: bool | Literal["log"], capsys: pytest.CaptureFixture[str]
) -> None:
    _trainer().train(total_steps=ROWS + 1, progress=progress)
    said = f"collects {ROWS} steps at a time: this run ends after {2 * ROWS} steps"
    assert (said in capsys.readouterr().err) == bool(progress)


def test_an_unknown_progress_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"progress.*'quiet'"):
        _trainer().train(total_steps=1, progress=cast('Literal["log"]', "quiet"))


def test_a_log_line_may_end_the_run() -> None:
    class Satisfied(Callback):
        def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> bool:
            return trainer.updates == 3

    config = TrainerConfig(log_every=1)
    trainer = _trainer(config=config, callbacks=(Satisfied(),), test_envs=_identity_envs)
    result = trainer.train(total_updates=5)
    assert (result.total_updates, result.stopped) == (3, False)
    assert result.evaluation is not None


@pytest.mark.parametrize("at", [None, "evaluating", "the end"])
def test_a_run_that_a_callback_ended_stays_ended(at: str | None, tmp_path: Path) -> None:
    """Also if it is stopped in the evaluation that follows, or killed in the final one."""

    class EndAtThird(Callback):
        def on_update_end(self, trainer: Trainer) -> bool:
            return trainer.updates == 3

        def on_tick(self, trainer: Trainer, activity: str) -> None:
            if trainer is not first or trainer.updates < 3 or not activity.startswith("evaluating"):
                return
            if at == "evaluating":
                trainer.stop()
            elif at == "the end" and not trainer.state.iteration.start:
                raise KeyboardInterrupt

    def new(run_dir: Path | None) -> Trainer:
        return _trainer(
            run_dir,
            envs=WalkVecEnv(NUM_ENVS),
            config=TrainerConfig(log_every=1, test_every=1, num_test_episodes=2),
            test_envs=WalkVecEnv(NUM_ENVS),
            callbacks=(EndAtThird(),),
        )

    first, whole, resumed = new(tmp_path), new(None), new(tmp_path)
    assert whole.train(total_updates=9).total_updates == 3
    with suppress(KeyboardInterrupt):
        assert first.train(total_updates=9).stopped == (at == "evaluating")
    resumed.resume()
    assert resumed.train(total_updates=9).total_updates == 3
    check_same_state(resumed.state_dict(), whole.state_dict())
    steps = [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == [ROWS, 2 * ROWS, 3 * ROWS]
    assert resumed.train(total_updates=5).total_updates == 5


def test_a_line_that_follows_a_checkpoint_is_written_once(tmp_path: Path) -> None:
    class Killing(Callback):
        def on_update_start(self, trainer: Trainer) -> None:
            if trainer.updates == 1:
                trainer.save_checkpoint()

        def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
            if trainer.updates == 2:
                raise KeyboardInterrupt

    config = TrainerConfig(log_every=1)
    with pytest.raises(KeyboardInterrupt):
        _trainer(tmp_path, envs=WalkVecEnv(NUM_ENVS), config=config, callbacks=(Killing(),)).train(
            total_updates=4
        )
    resumed = _trainer(tmp_path, envs=WalkVecEnv(NUM_ENVS), config=config)
    assert resumed.resume().step == 2 * ROWS
    resumed.train(total_updates=4)
    steps = [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == [ROWS, 2 * ROWS, 3 * ROWS, 4 * ROWS]


def test_a_run_directory_that_is_moved_meanwhile_is_not_begun_anew(tmp_path: Path) -> None:
    class Moving(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            if trainer.updates == 2:
                (tmp_path / "run").rename(tmp_path / "elsewhere")

    trainer = _trainer(tmp_path / "run", callbacks=(Moving(),))
    with pytest.raises(CheckpointError, match="was moved or removed while the run wrote into it"):
        trainer.train(total_updates=3)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_evaluations_in_a_run_are_cut_where_episodes_do_not_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def endless() -> VecEnv:
        return make_gym_vec(partial(IdentityEnv, spaces.Discrete(3), 10**9), NUM_ENVS)

    config = TrainerConfig(max_test_steps=7, num_test_episodes=3, test_every=1)
    result = _trainer(config=config, envs=endless(), test_envs=endless).train(total_updates=1)
    assert result.evaluation is not None
    assert (result.evaluation.num_cut, result.evaluation.mean_length) == (3, 7.0)
    assert "IdentityEnv has no time limit; if its episodes may" in capsys.readouterr().err


def test_the_steps_of_an_evaluation_are_counted_while_it_runs() -> None:
    class Watch(Callback):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_tick(self, trainer: Trainer, activity: str) -> None:
            if activity.startswith("evaluating"):
                self.seen.append(activity)

    watch = Watch()
    config = TrainerConfig(num_test_episodes=2, max_test_steps=2)
    _trainer(config=config, test_envs=_identity_envs, callbacks=(watch,)).train(total_updates=1)
    assert watch.seen[0] == "evaluating, 0 of 2 episodes, 0 steps"
    assert watch.seen[1] == f"evaluating, 0 of 2 episodes, {NUM_ENVS:,} steps"


def test_evaluations_may_explore() -> None:
    class Exploring(ToyActorCritic):
        explored = 0

        def explore(self, *arguments: Any, **more: Any) -> Any:
            self.explored += 1
            return super().explore(*arguments, **more)

    for explores in (False, True):
        envs = _identity_envs()
        actor = ToyActor(envs.single_observation_space, envs.single_action_space)
        algorithm = Exploring(actor)
        trainer = Trainer(
            envs,
            algorithm,
            ReferenceRolloutStorage(NUM_STEPS),
            config=TrainerConfig(explore_in_tests=explores),
            test_envs=_identity_envs,
        )
        trainer.evaluate(2)
        assert (algorithm.explored > 0) == explores
