"""The words of a command line are sorted the same way in whatever order they come."""

import pytest

from rl_command.errors import UsageError
from rl_command.options import Option
from rl_command.scanner import Scanned, scan

OPTIONS = tuple(
    Option(path, type_, "", None, "VALUE")
    for path, type_ in (
        (("seed",), int),
        (("algorithm", "gamma"), float),
        (("algorithm", "clip_value"), bool),
        (("actor", "sizes"), tuple[int, ...]),
    )
)


def given(scanned: Scanned) -> dict[str, list[str]]:
    return {option.flag: values for option, values in scanned.values.items()}


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
    scanned = scan(line.split(), OPTIONS)
    assert scanned.positionals == ["ppo", "CartPole"]
    assert given(scanned) == {
        "--seed": ["3"],
        "--actor.sizes": ["8", "4"],
        "--algorithm.clip-value": ["true"],
    }


@pytest.mark.parametrize("flag", ["--algorithm.no-clip-value", "--no-algorithm.clip-value"])
def test_no_before_its_name_turns_a_switch_off(flag: str) -> None:
    assert given(scan([flag, "ppo"], OPTIONS)) == {"--algorithm.clip-value": ["false"]}
    with pytest.raises(UsageError, match="takes no value"):
        scan([f"{flag}=true"], OPTIONS)


@pytest.mark.parametrize("number", ["-0.5", "-.5", "-inf", "-NaN"])
def test_a_negative_number_is_a_value(number: str) -> None:
    assert given(scan(["--algorithm.gamma", number], OPTIONS)) == {"--algorithm.gamma": [number]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--sed 3", "unknown option --sed; did you mean '--seed'"),
        ("--gamma 3", "unknown option --gamma; did you mean '--algorithm.gamma'"),
        ("--no-seed", "unknown option --no-seed"),
        ("--zzzzzz", "--help shows all options"),
        ("-s 3", "unknown option -s"),
        ("--seed", "--seed needs a value: VALUE"),
        ("--seed --actor.sizes 3", "--seed needs a value"),
        ("--seed 1 --seed 2", "--seed is given twice"),
        ("--actor.sizes 1 --seed=1 --actor.sizes=1", "--actor.sizes is given twice"),
        ("--algorithm.clip-value --no-algorithm.clip-value", "clip-value is given twice"),
    ],
)
def test_what_cannot_be_sorted_is_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        scan(line.split(), OPTIONS)
    assert message in str(caught.value)


def test_options_that_may_prove_right_later_are_passed_over_with_their_values() -> None:
    line = "--actor.width 8 9 --actor.deep ppo --storage.size=3 CartPole --seed 1"
    scanned = scan(
        line.split(), OPTIONS[:1], may_be_more=True, is_positional=lambda word: word == "ppo"
    )
    assert scanned.positionals == ["ppo", "CartPole"]
    assert given(scanned) == {"--seed": ["1"]}
