import torch

from rl_core.batch import Rollout
from rl_meta.rollouts import next_observations


def test_what_followed_the_last_step_of_an_episode_is_its_final_observation() -> None:
    no = torch.zeros(3, 2, dtype=torch.bool)
    rollout = Rollout(
        observation=torch.tensor([[[1.0], [10.0]], [[2.0], [20.0]], [[3.0], [30.0]]]),
        next_observation=torch.tensor([[4.0], [40.0]]),
        action=torch.zeros(3, 2, 1),
        reward=torch.zeros(3, 2),
        terminated=no,
        truncated=no,
        valid=~no,
        episode_start=no,
        state={},
        final_index=torch.tensor([[1, 0]]),
        final_observation=torch.tensor([[8.0]]),
    )
    assert next_observations(rollout)[..., 0].tolist() == [[2.0, 20.0], [8.0, 30.0], [4.0, 40.0]]
