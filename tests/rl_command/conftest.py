"""Running the command line inside a test, and one small run that many tests look at."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rl_command.main import main
from rl_core import plugins

TINY = (
    "--num-envs=2",
    "--actor.hidden-sizes=8",
    "--storage.num-steps=32",
    "--algorithm.num-epochs=1",
    "--trainer.num-test-episodes=2",
)


@pytest.fixture
def rl(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty directory; answers status, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(word) for word in words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def refused(rl: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Run a command that must fail as a user's error does, and return its message."""

    def run(*words: object) -> str:
        status, out, err = rl(*words)
        assert status == 2, err or out
        assert out == ""
        assert err.startswith("rl: error: ")
        assert err.count("\n") == 1
        return err.removeprefix("rl: error: ").rstrip("\n")

    return run


@pytest.fixture(scope="session")
def needs_ppo() -> None:
    """Skip where only rl-command and what it depends on are installed."""
    if "ppo" not in plugins.available("algorithm") or "rollout" not in plugins.available("storage"):
        pytest.skip("needs rl-algos-onpolicy and rl-storages")


@pytest.fixture
def tiny(needs_ppo: None) -> tuple[str, ...]:
    """Options that make a PPO run take a moment."""
    return TINY


@pytest.fixture(scope="session")
def trained_run(needs_ppo: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train once; tests that change the run copy it."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    words = ["train", "ppo", "CartPole-v1", *TINY, "--total-steps=256", f"--run-dir={directory}"]
    assert main(words) == 0
    return directory


@pytest.fixture(scope="session")
def trained_group(needs_ppo: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two seeds once; tests that change the runs copy them."""
    directory = tmp_path_factory.mktemp("trained") / "group"
    words = ["train", "ppo", "CartPole-v1", *TINY, "--total-steps=256", "--seeds=3..4"]
    assert main([*words, f"--run-dir={directory}"]) == 0
    return directory
