"""What is shown of a run while it goes on."""

import io
import re

import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rl_core.env import VecEnv
from rl_envs import make_gym_vec, make_vec
from rl_testing.reference import ReferenceRolloutStorage
from rl_testing.scripted import IdentityEnv
from rl_testing.toy import ToyActor, ToyActorCritic
from rl_train import Callback, Progress, Trainer
from rl_train.trainer.progress import _duration


class Clock:
    """Goes on by one second each time somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def _envs(num_envs: int = 2) -> VecEnv:
    return make_gym_vec(lambda: TimeLimit(IdentityEnv(spaces.Discrete(3), 5), 9), num_envs)


def _trainer(progress: Progress) -> Trainer:
    envs = _envs()
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    return Trainer(
        envs,
        ToyActorCritic(actor),
        ReferenceRolloutStorage(4),
        seed=1,
        test_envs=_envs,
        callbacks=[progress],
    )


def _begun(num_steps: int) -> tuple[io.StringIO, Clock, Progress, Trainer]:
    """Return a run that has told its progress that it begins."""
    stream, clock = io.StringIO(), Clock()
    progress = Progress("log", stream, clock=clock)
    trainer = _trainer(progress)
    progress.on_training_start(trainer, num_steps, "steps")
    return stream, clock, progress, trainer


def test_lines_say_how_far_a_run_is() -> None:
    stream = io.StringIO()
    _trainer(Progress("auto", stream, title="seed 3", clock=Clock())).train(total_steps=64)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "seed 3: 6 of 64 steps, 2 steps/s, 29 s left"  # after the first 2
    assert any(", return " in line and line.endswith(" s left") for line in lines)
    assert any("64 of 64 steps" in line and "evaluating, " in line for line in lines)


def test_a_terminal_gets_one_line_that_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    stream = Terminal()
    _trainer(Progress(stream=stream, clock=Clock())).train(total_steps=16)
    assert "\n" not in stream.getvalue()
    shown = [line.removesuffix("\x1b[K") for line in stream.getvalue().split("\r")[1:]]
    assert shown[-1] == ""
    assert all(len(line) < 70 for line in shown)
    assert any(re.match(r"\d+ of 16 steps  \[#+\.+\]  ", line) for line in shown)


def test_a_length_that_is_rounded_up_is_said_and_never_exceeded() -> None:
    stream = io.StringIO()
    _trainer(Progress("log", stream, clock=Clock(), title="seed 3")).train(total_steps=18)
    notice, *lines = stream.getvalue().splitlines()
    ends = "ToyActorCritic collects 8 steps at a time: this run ends after 24 steps"
    assert notice == f"seed 3: {ends}"
    assert lines
    assert all(" of 24 steps" in line for line in lines)


def test_a_callback_that_ends_a_run_is_said_to() -> None:
    class End(Callback):
        def on_update_end(self, trainer: Trainer) -> bool:
            return trainer.updates == 2

    stream = io.StringIO()
    trainer = _trainer(Progress("log", stream, clock=Clock()))
    trainer.callbacks = (*trainer.callbacks, End())
    assert trainer.train(total_steps=64).total_steps == 16
    assert stream.getvalue().endswith(
        "a callback ended the run at 16 of 64 steps, because its method returned True\n"
    )


def test_a_rollout_that_was_broken_off_counts_whole() -> None:
    class Stop(Callback):
        def on_tick(self, trainer: Trainer, activity: str) -> None:
            if trainer.total_steps == 4:
                trainer.stop()

    stream = io.StringIO()
    trainer = _trainer(Progress("log", stream, clock=Clock()))
    trainer.callbacks = (*trainer.callbacks, Stop())
    assert trainer.train(total_steps=16).stopped
    trainer.callbacks = trainer.callbacks[:1]
    assert trainer.train(total_steps=14).total_steps == 16
    notice, *lines = stream.getvalue().splitlines()
    assert notice == "ToyActorCritic collects 8 steps at a time: this run ends after 16 steps"
    assert all(" of 16 steps" in line for line in lines)


def test_rows_that_only_reset_may_take_another_rollout() -> None:
    stream = io.StringIO()
    envs = make_vec("CartPole-v1", 4, vectorization="native")
    assert envs.resets_in_steps
    actor = ToyActor(envs.single_observation_space, envs.single_action_space)
    progress = Progress("log", stream, clock=Clock())
    storage = ReferenceRolloutStorage(4)
    Trainer(envs, ToyActorCritic(actor), storage, callbacks=[progress]).train(total_steps=16)
    notice = "ToyActorCritic collects 16 steps at a time: this run ends after 16 to 31 steps"
    assert stream.getvalue().splitlines()[0] == notice


def test_waiting_for_the_compiler_is_said() -> None:
    stream = io.StringIO()
    progress = Progress("log", stream, clock=Clock())
    trainer = _trainer(progress)
    progress.on_training_start(trainer, 64, "steps")
    for activity in [*["compiling"] * 7, "collecting"]:
        progress.on_tick(trainer, activity)
    assert stream.getvalue() == "0 of 64 steps, compiling, 4 s\n"


def test_the_wait_for_the_compiler_counts_neither_for_the_speed_nor_for_the_time_left() -> None:
    stream, clock, progress, trainer = _begun(64)
    clock.now += 50.0  # the first step imports what it needs
    trainer.collector.total_steps = 4
    progress.on_tick(trainer, "collecting")
    clock.now += 1.0
    for _ in range(5):
        progress.on_tick(trainer, "compiling")
        clock.now += 20.0
    progress.on_tick(trainer, "collecting")
    trainer.collector.total_steps = 24
    clock.now += 7.0
    progress.on_tick(trainer, "collecting")
    assert stream.getvalue().splitlines()[-1] == "24 of 64 steps, 2 steps/s, 20 s left"


def test_speed_and_time_left_are_those_of_the_last_seconds() -> None:
    stream, _, progress, trainer = _begun(2_000)
    for seconds, speed in ((10, 100), (60, 10)):  # a warm-up without learning, and then learning
        for _ in range(seconds):
            trainer.collector.total_steps += speed
            progress.on_tick(trainer, "collecting")  # a second later
    # The last half of 70 seconds is longer than 20: it holds nothing of the warm-up.
    last = stream.getvalue().splitlines()[-1]
    assert last == "1,600 of 2,000 steps, 10 steps/s, 40 s left"


def test_times_are_written_in_the_unit_that_suits_them() -> None:
    assert [_duration(seconds) for seconds in (0.4, 99, 600, 9000)] == [
        "0 s",
        "99 s",
        "10 min",
        "2:30 h",
    ]
