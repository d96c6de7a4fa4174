"""The exploration noise of DDPG and TD3.

`rl_algos_offpolicy.ddpg` adds it to their actions. DQN's ε-greedy exploration is in
`rl_algos_offpolicy.dqn`.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from rl_core.errors import ConfigError

ExplorationNoise = Literal["gaussian", "ou", "uniform", "none"]
"""The noise that a deterministic policy explores with.

Each environment and each number of an action has its own: independent normal numbers, an
Ornstein-Uhlenbeck process, independent uniform numbers, or nothing.
"""


def draw_exploration_noise(
    kind: ExplorationNoise, shape: tuple[int, ...], generator: torch.Generator
) -> Tensor:
    """Draw independent numbers of mean 0 and standard deviation 1, or zeros.

    Args:
        kind: ``"ou"`` draws the process's normal increments.
        shape: of the result.
        generator: on the device of the result.
    """
    device = generator.device
    if kind == "none":
        return torch.zeros(shape, device=device)
    if kind == "uniform":
        uniform = torch.rand(shape, generator=generator, device=device)
        return math.sqrt(12.0) * (uniform - 0.5)
    return torch.randn(shape, generator=generator, device=device)


class OrnsteinUhlenbeck:
    r"""A process that pulls back to zero, one for each environment and number.

    $x_{t+1} = x_t - \theta x_t \Delta t + \sqrt{\Delta t}\, \epsilon_t$, with unit increments;
    the algorithm multiplies by σ. Episodes start at 0, and the standard deviation of x grows to
    $1 / \sqrt{2 \theta}$ where steps are short, 1.8 by default.

    Args:
        theta: rate of the pull, θ.
        dt: time between two steps, Δt.

    Raises:
        ConfigError: when steps are so long that each would pull beyond zero.

    Source:
        Uhlenbeck and Ornstein 1930; its use in Lillicrap et al. 2016,
        https://arxiv.org/abs/1509.02971, section 7.
    """

    def __init__(self, theta: float = 0.15, dt: float = 0.01) -> None:
        if theta * dt >= 1.0:
            raise ConfigError(
                f"ou_theta * ou_dt must be below 1, got {theta} * {dt}: each step would pull the "
                "noise beyond zero"
            )
        self.theta = theta
        self.dt = dt
        self.state = torch.zeros(0, 0)

    def step(self, increments: Tensor, episode_start: Tensor) -> Tensor:
        """Advance the process.

        Args:
            increments: shape `(B, A)`, standard normal.
            episode_start: shape `(B,)`, bool: start at 0.

        Returns:
            Shape `(B, A)`.
        """
        if self.state.shape != increments.shape:
            self.state = torch.zeros_like(increments)
        before = torch.where(episode_start.unsqueeze(-1), 0.0, self.state)
        self.state = before * (1.0 - self.theta * self.dt) + math.sqrt(self.dt) * increments
        return self.state
