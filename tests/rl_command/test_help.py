"""Help shows every option with its meaning and its default."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_command import __version__
from rl_command.options import Option, component_options
from rl_command.parser import Command, help_text
from rl_core import plugins
from rl_train import Trainer, TrainerConfig

Run = Callable[..., tuple[int, str, str]]


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_version_is_printed(rl: Run) -> None:
    assert rl("--version") == (0, f"rl {__version__}\n", "")


def test_the_commands_are_shown(rl: Run) -> None:
    for words in ((), ("--help",), ("-h",)):
        status, out, err = rl(*words)
        assert (status, err) == (0, "")
        assert all(f"rl {command}" in out for command in ("train", "resume", "eval", "list"))


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("train --help", ["ALGO ENV", "--total-steps INT", "[default: 100000]"]),
        ("train ppo --help", ["--config FILE"]),
        ("resume --help", ["RUN_DIR", "--total-steps INT"]),
        ("eval -h", ["RUN_DIR", "--episodes INT", "[default: 100]", "--stochastic", "--json"]),
        (
            "plot --help",
            ["RUN_DIRS...", "-o FILE", "--csv FILE", "--metric", "train/episode_return"],
        ),
        ("list --help", ["algorithms|storages", "--json"]),
    ],
)
def test_each_command_has_help(rl: Run, line: str, parts: list[str]) -> None:
    status, out, err = rl(*line.split())
    assert (status, err) == (0, "")
    for part in parts:
        assert part in flat(out)


@pytest.mark.usefixtures("needs_ppo")
def test_names_bring_their_options_with_texts_and_defaults(rl: Run) -> None:
    status, out, err = rl("train", "ppo", "CartPole-v1", "--help-all")
    assert (status, err) == (0, "")
    text = flat(out)
    for part in (
        "--algorithm.gamma FLOAT|SCHEDULE Discount factor per step (in [0, 1]) [default: 0.99]",
        "--algorithm.optimizer.eps FLOAT",
        "[default: 1e-05]",
        "--actor.name NAME Registered name of the actor",
        "--actor.hidden-sizes [INT ...]",
        "[default: 64 64]",
        "--storage.num-steps INT",
        "--env.num-envs INT",
        "--trainer.keep-checkpoints INT",
    ):
        assert part in text
    assert "--env.seed" not in text
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.usefixtures("needs_ppo")
def test_help_begins_with_the_options_that_people_set_first(rl: Run) -> None:
    _, out, _ = rl("train", "ppo", "CartPole-v1", "--help")
    for flag in ("total-steps", "num-envs", "seed", "device", "run-dir", "config", "seeds"):
        assert f"--{flag} " in out
    for flag in ("algorithm.learning-rate", "storage.num-steps", "actor.hidden-sizes"):
        assert f"--{flag} " in out
    assert "--algorithm.optimizer" not in out
    assert sum(line.startswith("  --") for line in out.splitlines()) < 36
    assert "more options: rl train ALGO ENV --help-all" in out


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("maml-vpg", ("algorithm.inner-lr", "algorithm.outer-lr", "algorithm.meta-batch-size")),
        ("pearl", ("algorithm.num-sampled-tasks", "algorithm.kl-coef", "actor.latent-dim")),
    ],
)
@pytest.mark.usefixtures("needs_ppo")
def test_help_shows_what_meta_learning_is_told_first(
    rl: Run, algorithm: str, options: tuple[str, ...]
) -> None:
    if not {algorithm, "sac"} <= set(plugins.available("algorithm")):
        pytest.skip("needs rl-meta and rl-algos-offpolicy")
    _, out, _ = rl("train", algorithm, "PointNavigation-v0", "--help")
    for option in (*options, "algorithm.inner-algorithm"):
        assert f"--{option} " in out


@pytest.mark.usefixtures("needs_ppo")
def test_defaults_from_a_file_are_shown(rl: Run) -> None:
    Path("my.toml").write_text("seed = 9\n[algorithm]\ngamma = 0.5\n[trainer]\ntotal_steps = 77\n")
    _, out, _ = rl("train", "ppo", "CartPole-v1", "--config", "my.toml", "--help")
    text = flat(out)
    assert "(in [0, 1]) [default: 0.5]" in text
    assert "(>= 0)" in text
    assert "[default: 9]" in text
    assert "[default: 77]" in text


@dataclass(frozen=True, kw_only=True, slots=True)
class TidyConfig(TrainerConfig):
    """Options of `Tidy`.

    Attributes:
        tidiness: how tidy.
    """

    tidiness: float = 0.5


class Tidy:
    """As a plug-in would write it."""

    def __init__(self, config: TidyConfig) -> None:
        self.config = config


def test_the_short_help_shows_what_a_plug_in_adds() -> None:
    options = component_options("actor", Tidy, {"tidiness": 0.5, "test_every": 5, "compile": "on"})
    shown = {option.path[1]: option.is_own for option in options}
    assert shown == {"test_every": False, "compile": False, "tidiness": True}
    assert not any(option.is_own for option in component_options("trainer", Trainer))
    more = (Option(("actor", "rare"), int), Option(("actor", "seldom"), int))
    text = help_text(Command("rl train", "Train.", (*options, *more)), everything=False)
    assert "--actor.tidiness" in text
    assert "--actor.compile" not in text
    assert "3 more options" in text
