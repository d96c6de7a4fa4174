import pytest
from bench import envs
from bench.envs_run import measure, measure_added
from bench.measurement import Measurement


def test_systems_that_lack_an_environment_are_left_out() -> None:
    assert envs.systems_of("cartpole") == list(envs.SYSTEMS)
    assert set(envs.SYSTEMS) - set(envs.systems_of("millisecond")) == {
        "ours-native",
        "ours-envpool",
        "gymnasium-native",
        "envpool",
    }


@pytest.mark.parametrize(
    ("env", "system"),
    [
        ("cartpole", "ours-sync"),
        ("cartpole", "ours-native"),
        ("cartpole", "gymnasium-sync"),
        ("cartpole", "gymnasium-native"),
        ("millisecond", "ours-async"),
        ("millisecond", "gymnasium-async"),
    ],
)
def test_every_system_steps(env: str, system: str) -> None:
    assert measure(env, 2, system, 0.01)["rate"] > 0.0


@pytest.mark.parametrize("system", ["ours-sync", "ours-native"])
def test_what_is_added_to_a_step_is_measured(system: str) -> None:
    found = measure_added(8, system, 0.05)
    assert found["bare_us"] > 0.0
    assert abs(found["added_us"]) < 10.0 * found["bare_us"]


def test_rates_stand_beside_each_other_by_number() -> None:
    rounds = [{"ours-sync": {"rate": 1000.0}}, {"ours-sync": {"rate": 3000.0}}]
    found = Measurement(rounds, 3.0, "a machine; threads 1").as_dict()
    text = envs.render({"cartpole-8": found})
    assert "| `cartpole` | ours, sync | - | 2,000 | - |" in text
    assert "- `cartpole-8`: medians of 2 rounds of 3 s, 1 thread.\n\nMeasured on a machine." in text
    assert envs.render({}) == "Nothing was measured yet."


def test_our_processes_stand_beside_others() -> None:
    rounds = [{"ours-async": {"rate": 3000.0}, "sb3-subproc": {"rate": 2000.0}}]
    found = Measurement(rounds, 1.0, "a machine").as_dict()
    rounds[0] |= {"gymnasium-async": {"rate": 1000.0}}
    both = Measurement(rounds, 1.0, "a machine").as_dict()
    added = Measurement([{"ours-native": {"bare_us": 20.0, "added_us": 4.26}}], 1.0, "m").as_dict()
    text = envs.overview(
        {"one": {"millisecond-8": found}, "other": {"millisecond-8": both, "added": added}}
    )
    assert text.splitlines()[2:] == [
        "| `millisecond`, 8 at once | 1.50 | 1.50 (3.00) |",
        "| added to a step of Gymnasium, native | - | 4.3 µs |",
    ]


def test_what_is_added_is_told_with_its_goal() -> None:
    rounds = [{"ours-native": {"bare_us": 20.04, "added_us": 4.26}}]
    text = envs.render({"added": Measurement(rounds, 1.0, "a machine").as_dict()})
    assert text.startswith(
        "To a step of 8 `cartpole`, `VecEnv` adds 4.3 µs to the 20.0 of Gymnasium, native "
        "(goal: at most 10).\n\n- `added`: medians of one round of 1 s"
    )
