import torch

from rl_core.returns import n_step_target

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
