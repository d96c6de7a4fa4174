"""The command as a process: pipes, terminals and signals."""

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rl_train.checkpoint import list_checkpoints
from rl_train.loggers import read_metrics
from support.signals import interrupted

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
RL = [sys.executable, "-m", "rl_command"]


def test_piped_training_shows_no_progress(tiny: tuple[str, ...], tmp_path: Path) -> None:
    words = ["train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--run-dir=run"]
    done = subprocess.run(
        [*RL, *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "evaluation" in done.stdout
    assert "\r" not in done.stdout


def test_a_terminal_gets_a_progress_bar(tiny: tuple[str, ...], tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = ["train", "ppo", "CartPole-v1", *tiny, "--total-steps=600", "--run-dir=run"]
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [*RL, *words], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:
                break
            if not chunk:
                break
            shown += chunk
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert " of 640 steps" in text
    assert "steps/s" in text
    assert "return" in text


def test_errors_have_status_2_and_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*RL, "eval", "nowhere"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "rl: error: there is no run directory nowhere\n"


def test_what_needs_no_component_imports_none() -> None:
    code = (
        "import sys; from rl_command.main import main; "
        "print([main([word]) for word in ('--version', '--help', 'trian', 'train', 'eval')]); "
        "print({'torch', 'rl_core', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-2:] == ["[0, 0, 2, 2, 2]", "set()"]


def test_ctrl_c_while_importing_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise KeyboardInterrupt")
    done = subprocess.run(
        [*RL, "eval", "nowhere"],
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rl: interrupted\n")


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as broken:
        done = subprocess.run(
            [*RL, "--help"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=broken,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def stopped(words: list[str], cwd: Path, logs: list[Path], number: signal.Signals) -> str:
    """Send a signal when every log has a line, and return what the command wrote to stderr."""

    def is_ready() -> bool:
        return all(log.exists() and log.stat().st_size for log in logs)

    done = interrupted(words, number, is_ready, cwd=cwd, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (128 + number, "")
    return done.stderr


ENDLESS = ("--total-steps=10_000_000", "--trainer.log-every=64", "--trainer.compile=off")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_can_be_resumed(
    rl: Callable[..., tuple[int, str, str]],
    tiny: tuple[str, ...],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    words = ["train", "ppo", "CartPole-v1", *tiny, *ENDLESS, "--run-dir=run"]
    err = stopped(words, tmp_path, [tmp_path / "run/metrics.jsonl"], number)
    assert "rl: stopping and saving a checkpoint" in err
    (checkpoint,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    step = int(checkpoint.name.removeprefix("step-"))
    assert f"stopped at step {step:,}" in err
    assert "rl resume run" in err
    more = step - step % 64 + 100  # no whole number of rollouts
    status, _, err = rl("resume", "run", "--total-steps", str(more))
    assert status == 0
    assert err.count("\n") == 1
    assert "collects 64 steps at a time: this run ends after " in err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["total_steps"] >= more


@pytest.mark.parametrize("is_late", [False, True])
def test_a_run_outlives_the_reader_of_its_progress(
    tiny: tuple[str, ...], tmp_path: Path, is_late: bool
) -> None:
    """Ctrl-C in ``rl train ... 2>&1 | tee log`` ends tee as well."""
    words = ["train", "ppo", "CartPole-v1", *tiny, *ENDLESS, "--run-dir=run"]
    log = tmp_path / "run/metrics.jsonl"
    with subprocess.Popen(
        [*RL, *words], cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60.0
        while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.stderr is not None
        process.stderr.close()
        time.sleep(6.0 if is_late else 0.0)  # a line of progress falls due every five seconds
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30.0)
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_seeds_can_be_continued(
    tiny: tuple[str, ...], tmp_path: Path, jobs: int
) -> None:
    words = ["train", "ppo", "CartPole-v1", *tiny, *ENDLESS, "--seeds=3..5", f"--jobs={jobs}"]
    running = [tmp_path / f"group/seed-{3 + index}" for index in range(jobs)]
    logs = [run / "metrics.jsonl" for run in running]
    err = stopped([*words, "--run-dir=group"], tmp_path, logs, signal.SIGINT)
    assert "to continue: the same command with --run-dir group" in err
    assert all(len(list_checkpoints(run / "checkpoints")) == 1 for run in running)
    assert not (tmp_path / f"group/seed-{3 + jobs}").exists()


@pytest.mark.parametrize("at_step", [50, 84])
def test_a_signal_ends_a_rollout_and_an_evaluation_at_once(
    rl: Callable[..., tuple[int, str, str]],
    tiny: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_step: int,
) -> None:
    taken = 0

    class Terminated(gymnasium.Env):
        """Is sent SIGTERM in one of the steps that all of its kind take."""

        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(
            self, *, seed: int | None = None, options: dict[str, object] | None = None
        ) -> tuple[object, dict[str, object]]:
            self.age = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]:
            nonlocal taken
            taken += 1
            self.age += 1
            if taken == at_step:
                signal.raise_signal(signal.SIGTERM)
            return np.zeros(1, np.float32), 1.0, False, self.age == 20, {}

    spec = gymnasium.envs.registration.EnvSpec("Terminated-v0", lambda **_: Terminated())
    monkeypatch.setitem(gymnasium.registry, "Terminated-v0", spec)
    # A rollout takes 64 steps of both; an evaluation follows each.
    status, out, err = rl(
        *("train", "ppo", "Terminated-v0", *tiny, "--env.vectorization=sync"),
        *("--total-steps=300", "--run-dir=run", "--trainer.test-every=1"),
    )
    assert (status, out) == (128 + signal.SIGTERM, ""), err
    assert taken == at_step + at_step % 2
    assert f"stopped at step {min(64, taken)}; saved" in err
    status, _, err = rl("resume", "run")
    assert status == 0, err
    steps = [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert steps[:2] == ([64, 128] if at_step == 84 else [114, 178])


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "2>/dev/full"])
def test_a_run_needs_neither_output_nor_errors(
    tiny: tuple[str, ...], tmp_path: Path, closed: str
) -> None:
    words = [*RL, "train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--run-dir=run"]
    command = f"{shlex.join(words)} {closed}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=ENVIRONMENT, check=False)
    assert done.returncode == 0
    assert (tmp_path / "run/summary.json").is_file()


def test_an_output_of_ascii_alone_is_no_error(tiny: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [*RL, "train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--progress=none"],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b" ? " in done.stdout  # instead of a plus and minus sign
