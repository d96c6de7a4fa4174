import pytest
from bench import envs
from bench.envs_run import measure
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


def test_rates_stand_beside_each_other_by_number() -> None:
    rounds = [{"ours-sync": {"rate": 1000.0}}, {"ours-sync": {"rate": 3000.0}}]
    found = Measurement(rounds, 3.0, "a machine").as_dict()
    text = envs.render({"cartpole-8": found})
    assert "| `cartpole` | ours, sync | - | 2,000 | - |" in text
    assert "medians of 2 rounds of 3 s on a machine" in text
    assert envs.render({}) == "Nothing was measured yet."
