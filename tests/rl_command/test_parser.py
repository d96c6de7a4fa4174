"""The words of a command line are read the same way in whatever order they come."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from rl_command.errors import UsageError
from rl_command.options import Option
from rl_command.parser import Command, Given, help_text, parse
from rl_core.config import Config, Count, Needs, Tables
from rl_core.types import Json

OPTIONS = tuple(
    Option(path, type_, "What it does", None, "VALUE", short)
    for path, type_, short in (
        (("seed",), int, None),
        (("imports",), tuple[str, ...], "--import"),
        (("algorithm", "gamma"), float, None),
        (("algorithm", "clip_value"), bool, None),
        (("algorithm", "learning_rate"), float, None),
        (("algorithm", "entropy_coef"), float, None),
        (("algorithm", "num_epochs"), int, None),
        (("algorithm", "gae_lambda"), float, None),
        (("actor", "sizes"), tuple[int, ...], None),
        (("actor", "hidden_sizes"), tuple[int, ...], None),
        (("storage", "num_steps"), int, None),
        (("storage", "prioritized"), dict[str, Json] | None, None),
        (("storage", "prioritized", "eta"), float, None),
    )
)
COMMAND = Command("rl train", "Train.", OPTIONS, ("ALGO", "ENV"), sections={"algorithm": "ppo"})


def read(line: str, partial: bool = False) -> Given:
    return parse(COMMAND, line.split(), partial=partial, is_name={"ppo", "CartPole"}.__contains__)


@pytest.mark.parametrize(
    "line",
    [
        "ppo CartPole --seed 3 --actor.sizes 8 4 --algorithm.clip-value",
        "--seed 3 ppo CartPole --algorithm.clip-value true --actor.sizes 8 4",
        "--actor.sizes 8 4 ppo --algorithm.clip-value CartPole --seed=3",
        "--algorithm.clip_value ppo --seed=3 CartPole --actor.sizes 8 4",
    ],
)
def test_the_order_does_not_matter(line: str) -> None:
    given = read(line)
    assert given.names == ["ppo", "CartPole"]
    assert given.tables == {
        "seed": 3,
        "actor": {"sizes": [8, 4]},
        "algorithm": {"clip_value": True},
    }


@pytest.mark.parametrize("value", ["--later ppo", "--later=ppo", "--import ppo", "--import=ppo"])
def test_a_value_that_equals_a_name_is_no_name(value: str) -> None:
    names = read(f"ppo CartPole {value}", partial=True).names
    assert names == ["ppo", "CartPole"]
    assert {*map(type, names)} == {str}


@pytest.mark.parametrize("flag", ["--algorithm.no-clip-value", "--no-algorithm.clip-value"])
def test_no_before_its_name_turns_a_switch_off(flag: str) -> None:
    assert read(f"{flag} ppo").tables == {"algorithm": {"clip_value": False}}
    with pytest.raises(UsageError, match="ignored explicit argument"):
        read(f"{flag}=true")


@pytest.mark.parametrize("line", ["--json run", "run --json", "--json true run", "--json=True run"])
def test_a_switch_leaves_a_name_behind_it_alone(line: str) -> None:
    command = Command("rl eval", "Evaluate.", (Option(("json",), bool),), ("RUN_DIR",))
    given = parse(command, line.split())
    assert (given.names, given.tables) == (["run"], {"json": True})
    with pytest.raises(UsageError, match=r"got 'maybe'.*; write true or false"):
        parse(command, ["run", "--json=maybe"])


@pytest.mark.parametrize(("word", "number"), [("-0.5", -0.5), ("-.5", -0.5), ("-2e3", -2000.0)])
def test_a_negative_number_is_a_value(word: str, number: float) -> None:
    assert read(f"--algorithm.gamma {word}").tables == {"algorithm": {"gamma": number}}


@pytest.mark.parametrize("word", ["-inf", "-NaN", "nan"])
def test_a_number_that_is_not_finite_is_a_value_and_refused(word: str) -> None:
    with pytest.raises(UsageError, match=r"^--algorithm\.gamma: got "):
        read(f"--algorithm.gamma {word}")


def test_modules_to_import_may_be_repeated() -> None:
    assert read("--import a --import b,c").tables == {"imports": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--sed 3", "unknown option --sed (did you mean '--seed'?)"),
        ("--gamma 3", "unknown option --gamma (did you mean '--algorithm.gamma'?)"),
        ("--no-seed", "unknown option --no-seed"),
        ("--zzzzzz", "--help-all shows all options"),
        ("-s 3", "unknown option -s"),
        ("--seed", "argument --seed: expected one argument"),
        ("--seed --actor.sizes 3", "argument --seed: expected one argument"),
        ("--actor.sizes --seed 3", "--actor.sizes: expected at least one argument; write []"),
        ("--seed 1 --seed 2", "--seed is given twice"),
        ("--actor.sizes 1 --seed=1 --actor.sizes=1", "--actor.sizes is given twice"),
        ("--algorithm.clip-value --no-algorithm.clip-value", "clip-value is given twice"),
        (
            "--storage.prioritized none --storage.prioritized.eta 1",
            "eta contradicts --storage.pri",
        ),
        (
            "--storage.prioritized.eta 1 --storage.prioritized {}",
            "prioritized contradicts --sto",
        ),
        ("ppo CartPole more", "'more' is one argument too many: rl train takes ALGO ENV"),
        ("--algorithm.clip-value maybe ppo CartPole", "--algorithm.clip-value: got 'maybe'"),
        ("--seed=", "--seed is empty; expected VALUE"),
        ("--actor.sizes=", "--actor.sizes is empty; expected VALUE; write []"),
    ],
)
def test_what_cannot_be_read_is_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(line)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--num_steps", "--storage.num-steps"),
        ("--num-steps", "--storage.num-steps"),
        ("--algorithm.num-steps", "--storage.num-steps"),
        ("--n-steps", "--storage.num-steps"),
        ("--n_steps", "--storage.num-steps"),
        ("--lr", "--algorithm.learning-rate"),
        ("--algorithm.lr", "--algorithm.learning-rate"),
        ("--hidden-sizes", "--actor.hidden-sizes"),
        ("--hidden-size", "--actor.hidden-sizes"),
        ("--net-arch", "--actor.hidden-sizes"),
        ("--ent_coef", "--algorithm.entropy-coef"),
        ("--n-epochs", "--algorithm.num-epochs"),
        ("--Gamma", "--algorithm.gamma"),
        ("--storage.prioritised.eta", "--storage.prioritized.eta"),
    ],
)
def test_options_of_other_sections_and_libraries_are_recognised(typed: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(f"ppo CartPole {typed} 3")
    flag = typed.replace("_", "-")
    assert str(caught.value) == f"unknown option {flag} (did you mean '{meant}'?)"


def test_only_a_flag_without_a_section_may_mean_a_place() -> None:
    with pytest.raises(UsageError, match="ALGO and ENV take no flag"):
        read("ppo CartPole --env-id Other")
    with pytest.raises(UsageError, match=r"--env\.env-kwargs \(--help-all shows all options\)"):
        read("ppo CartPole --env.env-kwargs {}")


def test_options_of_components_belong_to_the_command_that_trains() -> None:
    command = Command("rl resume", "Resume.", (Option(("json",), bool),), ("RUN_DIR",))
    with pytest.raises(UsageError, match="a run keeps the options that it began with; rl resume"):
        parse(command, ["run", "--algorithm.gamma", "0.9"])


def test_all_unknown_options_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        read("ppo CartPole --n-steps 3 --zzzz=1 --algorithm.gamma 0.9 --lr -1")
    assert str(caught.value) == (
        "unknown options --n-steps (did you mean '--storage.num-steps'?), "
        "--zzzz (--help-all shows all options), "
        "--lr (did you mean '--algorithm.learning-rate'?)"
    )


def test_options_that_may_prove_right_later_are_passed_over_with_their_values() -> None:
    line = "--actor.width 8 9 --actor.deep ppo --storage.size=3 CartPole --seed 1"
    given = read(line, partial=True)
    assert given.names == ["ppo", "CartPole"]
    assert given.tables == {"seed": 1}


@dataclass(frozen=True, kw_only=True)
class Arguments(Config):
    """Options.

    Attributes:
        seed: at least 1.
    """

    seed: Count = 1
    jobs: Annotated[int, Needs("seed")] = 0


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"seed": 0}, "--seed must be a whole number of at least 1, got 0"),
        ({"jobs": 2}, "--jobs has no effect without --seed; set that too, or leave it out"),
    ],
)
def test_values_out_of_range_are_refused_by_their_flag(tables: Tables, message: str) -> None:
    given = Given(tables=tables, flags={name: f"--{name}" for name in tables})
    with pytest.raises(UsageError) as caught:
        given.into(Arguments)
    assert str(caught.value) == message


def test_help_shows_first_what_people_set_first() -> None:
    short, whole = help_text(COMMAND, everything=False), help_text(COMMAND)
    for flag in ("--seed", "--import", "--algorithm.learning-rate", "--storage.num-steps"):
        assert flag in short
    assert "--algorithm.clip-value" not in short
    assert "--algorithm.clip-value [VALUE]" in whole
    assert "1 more options: rl train ALGO ENV --help-all" in short
    assert "more options" not in whole


def test_help_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_text(Command("rl x", "Do.", (Option(("seed",), int, "word " * 40, "3", "INT"),)))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1].endswith("[default: 3]")
