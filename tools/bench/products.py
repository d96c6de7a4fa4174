r"""What the matrix products of a gradient step take at least, and how fast a machine makes them.

A network with layers of $n_0, n_1, \dots, n_L$ units takes, for N samples,

(1) $F = 2 N \sum_i n_{i-1} n_i$ operations forwards,

(2) F for the gradient of its weights,

(3) $F$ for the gradient of its input, or $F - 2 N n_0 n_1$ where it ends at the first layer.

A step of TD3, SAC or DroQ with two critics Q and a policy π is the sum of

(4) the target: π and both Q forwards;

(5) the critics: both Q forwards, (2), and (3) up to the first layer;

(6) the policy: π forwards, (2), and (3) up to the first layer; and forwards and (3) of the one Q
    (TD3) or both (SAC, DroQ) that judge its actions. In TD3 this comes every second step, in DroQ
    once after each step of the environment.

A step of DQN is (4) and (5) of one network Q, and there is no π.

PPO on images has one network for policy and value. In a convolution each of its outputs is a unit
of its own, and $n_{i-1}$ is what one of them sees. Each step of an environment takes

(7) one forward to act, and in each epoch (1), (2), and (3) up to the first layer.

That counts what the equations need, whatever a system computes beside it.
"""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from bench.workloads import WORKLOADS, PPOSettings, ReplaySettings

_SIZE = 256
_PER_CHUNK = 50
_POLICY_DELAY = 2
_NUM_CRITICS = 2
_STACKED_FRAMES, _FRAME_SIZE = 4, 84
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # of NatureCNN: channels, kernel and stride
_NUM_FEATURES = 512
_PONG_ACTIONS = 6


def measure(workload: str, seconds: float) -> dict[str, float]:
    """Count the operations of a step, and measure those per second.

    Args:
        workload: name of the one whose steps are counted.
        seconds: to measure each library for.

    Returns:
        ``flops`` of a step; ``mkl`` and ``onednn``, operations per second.
    """
    env_id, settings = WORKLOADS[workload].env, WORKLOADS[workload].settings
    if isinstance(settings, PPOSettings):
        image_flops = flops_per_image_step(settings.num_epochs, _PONG_ACTIONS)
        return {"flops": float(image_flops), **products_per_second(seconds)}
    assert isinstance(settings, ReplaySettings)
    env = gymnasium.make(env_id)
    observation, action = env.observation_space, env.action_space
    env.close()
    assert isinstance(observation, spaces.Box)
    assert isinstance(action, spaces.Box | spaces.Discrete)
    num_actions = int(action.n) if isinstance(action, spaces.Discrete) else action.shape[0]
    flops = flops_per_step(settings, observation.shape[0], num_actions)
    return {"flops": float(flops), **products_per_second(seconds)}


def flops_per_step(settings: ReplaySettings, observation_size: int, action_size: int) -> float:
    """Count the floating-point operations of matrix products per step of an environment.

    Args:
        settings: of any of the four.
        observation_size: numbers in an observation.
        action_size: numbers in an action, or actions of DQN.

    Returns:
        The sum of (4) to (6), on average.
    """
    samples = settings.minibatch_size
    if settings.algorithm == "dqn":
        sizes = (observation_size, *settings.hidden_sizes, action_size)
        return 4 * _forward(sizes, samples) - _forward(sizes[:2], samples)
    is_td3 = settings.algorithm == "td3"
    outputs = action_size if is_td3 else 2 * action_size  # SAC's policy has a deviation, too
    policy_sizes = (observation_size, *settings.hidden_sizes, outputs)
    critic_sizes = (observation_size + action_size, *settings.hidden_sizes, 1)
    policy, critic = _forward(policy_sizes, samples), _forward(critic_sizes, samples)
    policy_first, critic_first = (_forward(s[:2], samples) for s in (policy_sizes, critic_sizes))

    target = policy + _NUM_CRITICS * critic
    critics = _NUM_CRITICS * (3 * critic - critic_first)
    num_judges = 1 if is_td3 else _NUM_CRITICS
    improvement = 3 * policy - policy_first + num_judges * 2 * critic
    num_improvements = 1 / _POLICY_DELAY if is_td3 else 1
    return settings.gradient_steps * (target + critics) + num_improvements * improvement


def flops_per_image_step(num_epochs: int, num_actions: int) -> int:
    """Count the floating-point operations of PPO with NatureCNN per step of an environment.

    Args:
        num_epochs: passes over each rollout.
        num_actions: of the policy, which shares the network with the value function.

    Returns:
        The sum of (7), for four stacked frames of 84x84.
    """
    layers = []
    channels, size = _STACKED_FRAMES, _FRAME_SIZE
    for out_channels, kernel, stride in _CONVOLUTIONS:
        size = (size - kernel) // stride + 1
        layers.append(2 * channels * kernel**2 * out_channels * size**2)
        channels = out_channels
    forward = sum(layers) + _forward((channels * size**2, _NUM_FEATURES, num_actions + 1), 1)
    return forward + num_epochs * (3 * forward - layers[0])


def products_per_second(seconds: float) -> dict[str, float]:
    """Measure products of 256x256 by 256x256 in float32, by both libraries that PyTorch has.

    Args:
        seconds: for each.

    Returns:
        Floating-point operations per second by library.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(_SIZE, _SIZE, generator=generator) for _ in range(2))
    result = torch.empty(_SIZE, _SIZE)

    def by_mkl() -> Tensor:
        return torch.mm(a, b, out=result)

    def by_onednn() -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
        return product

    return {
        "mkl": 2.0 * _SIZE**3 * calls_per_second(by_mkl, seconds),
        "onednn": 2.0 * _SIZE**3 * calls_per_second(by_onednn, seconds),
    }


def calls_per_second(
    call: Callable[[], object],
    seconds: float,
    warm_up: int = _PER_CHUNK,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measure how often something can be done per second: the median over chunks of calls.

    Args:
        call: what to do.
        seconds: shortest length of the measured span.
        warm_up: calls before it.
        clock: seconds from any origin.
    """
    for _ in range(warm_up):
        call()
    chunks: list[float] = []
    start = before = clock()
    while before - start < seconds or not chunks:
        for _ in range(_PER_CHUNK):
            call()
        now = clock()
        chunks.append(now - before)
        before = now
    return _PER_CHUNK / statistics.median(chunks)


def _forward(sizes: tuple[int, ...], samples: int) -> int:
    """Eq. (1)."""
    return 2 * samples * sum(before * after for before, after in pairwise(sizes))
