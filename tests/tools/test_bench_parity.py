import math

import pytest
import torch
from bench.parity import main
from bench.parity_data import Noisy, apart_by_part


def test_the_distance_is_a_share_of_how_far_the_peer_moved() -> None:
    start = {
        "policy_torso.a": torch.zeros(2),
        "action_head.b": torch.zeros(1),
        "value.c": torch.ones(1),
    }
    theirs = {
        "policy_torso.a": torch.tensor([3.0, 0.0]),
        "action_head.b": torch.tensor([4.0]),
        "value.c": torch.tensor([3.0]),
    }
    ours = {**theirs, "action_head.b": torch.tensor([4.5])}
    assert apart_by_part(start, theirs, ours) == {"policy": pytest.approx(0.1), "value": 0.0}


def test_a_part_that_was_held_is_left_out_unless_ours_moved() -> None:
    held, moved = {"critics.a": torch.zeros(2)}, {"critics.a": torch.ones(2)}
    assert apart_by_part(held, held, held) == {}
    assert apart_by_part(held, held, moved) == {"critics": math.inf}


@pytest.mark.parametrize("is_discrete", [False, True])
def test_the_environment_keeps_what_it_gave(is_discrete: bool) -> None:
    env = Noisy(is_discrete=is_discrete)
    observation, _ = env.reset()
    rewards = []
    for _ in range(100):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        rewards.append(reward)
        assert env.rows[-1][4] is observation
        assert not (terminated and truncated)
    assert [row[1] for row in env.rows] == rewards
    assert any(row[2] for row in env.rows)
    assert any(row[3] for row in env.rows)


def test_an_unknown_algorithm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "ppo2"])
    assert "known: ppo, a2c" in capsys.readouterr().err
