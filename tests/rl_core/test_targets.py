import pytest
import torch

from rl_core.returns import n_step_distribution, n_step_target

GAMMA = torch.tensor(0.5)


def test_one_step_targets_bootstrap_unless_terminated() -> None:
    target = n_step_target(
        reward=torch.tensor([[1.0], [1.0]]),
        num_steps=torch.tensor([1, 1]),
        terminated=torch.tensor([False, True]),
        next_value=torch.tensor([4.0, 4.0]),
        gamma=GAMMA,
    )
    assert target.tolist() == [1.0 + 0.5 * 4.0, 1.0]


def test_each_sample_has_its_own_number_of_steps() -> None:
    target = n_step_target(
        reward=torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 0.0], [1.0, 0.0, 0.0]]),
        num_steps=torch.tensor([3, 2, 1]),
        terminated=torch.tensor([False, False, True]),
        next_value=torch.tensor([8.0, 8.0, 8.0]),
        gamma=GAMMA,
    )
    assert target.tolist() == [1.0 + 1.0 + 1.0 + 1.0, 1.0 + 1.0 + 2.0, 1.0]


def test_targets_of_sequences_have_their_axes() -> None:
    target = n_step_target(
        torch.ones(5, 3, 2),
        torch.full((5, 3), 2),
        torch.zeros(5, 3, dtype=torch.bool),
        torch.zeros(5, 3),
        GAMMA,
    )
    assert target.shape == (5, 3)
    assert torch.equal(target, torch.full((5, 3), 1.5))


ATOMS = torch.tensor([0.0, 1.0, 2.0])


def _project(reward: float, terminated: bool, gamma: float = 1.0) -> list[float]:
    return n_step_distribution(
        torch.tensor([[0.2, 0.3, 0.5]]),
        ATOMS,
        torch.tensor([[reward]]),
        torch.tensor([1]),
        torch.tensor([terminated]),
        torch.tensor(gamma),
    )[0].tolist()


def test_a_distribution_stays_where_nothing_moves_it() -> None:
    assert _project(0.0, terminated=False) == pytest.approx([0.2, 0.3, 0.5])


def test_mass_between_atoms_is_shared_by_distance() -> None:
    # Atoms 0, 1, 2 move to 0.25, 1.25, 2.25, the last of which is cut to 2.
    assert _project(0.25, terminated=False) == pytest.approx(
        [0.75 * 0.2, 0.25 * 0.2 + 0.75 * 0.3, 0.25 * 0.3 + 0.5]
    )


def test_a_discount_draws_atoms_together() -> None:
    # Atoms 0, 1, 2 move to 0, 0.5, 1.
    assert _project(0.0, terminated=False, gamma=0.5) == pytest.approx([0.2 + 0.15, 0.15 + 0.5, 0])


def test_after_termination_only_the_reward_is_left() -> None:
    assert _project(1.5, terminated=True) == pytest.approx([0.0, 0.5, 0.5])
    assert _project(-7.0, terminated=True) == pytest.approx([1.0, 0.0, 0.0])


def test_several_rewards_move_a_distribution_further() -> None:
    moved = n_step_distribution(
        torch.tensor([[1.0, 0.0, 0.0]]),
        ATOMS,
        torch.tensor([[1.0, 1.0]]),
        torch.tensor([2]),
        torch.tensor([False]),
        torch.tensor(0.5),
    )
    assert moved[0].tolist() == pytest.approx([0.0, 0.5, 0.5])  # 1 + 0.5
