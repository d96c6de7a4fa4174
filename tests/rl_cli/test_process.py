"""The command as a process: pipes, terminals and signals."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_core.checkpoint import list_checkpoints

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
RL = [sys.executable, "-m", "rl_cli"]


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
    words = ["train", "ppo", "CartPole-v1", *tiny, "--total-steps=4000", "--run-dir=run"]
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
    assert "/4,000 steps" in text
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
        "import sys; from rl_cli.main import main; "
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
        [*RL, "list"],
        env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)},
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
            [*RL, "list"],
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=broken,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_can_be_resumed(
    tiny: tuple[str, ...], tmp_path: Path, number: signal.Signals
) -> None:
    words = ["train", "ppo", "CartPole-v1", *tiny, "--total-steps=10_000_000", "--run-dir=run"]
    log = tmp_path / "run" / "metrics.jsonl"
    options = ["--trainer.log-every=64", "--trainer.compile=off"]
    with subprocess.Popen(
        [*RL, *words, *options],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60.0
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            if log.exists() and log.stat().st_size:
                break
        process.send_signal(number)
        try:
            out, err = process.communicate(timeout=30.0)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert out == ""
    (checkpoint,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    step = int(checkpoint.name.removeprefix("step-"))
    assert f"stopped at step {step}" in err
    assert "rl resume run" in err
    done = subprocess.run(
        [*RL, "resume", "run", "--total-steps", str(step + 100)],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["total_steps"] >= step + 100
