from typing import Literal

import pytest
import torch
from bench import products
from bench.measurement import Measurement
from bench.products import calls_per_second, flops_per_image_step, flops_per_step
from bench.speed_table import speed_table
from bench.workloads import WORKLOADS, ReplaySettings
from torch import Tensor, autograd, nn
from torch.utils.flop_counter import FlopCounterMode

from rl_core.nn.cnn import NatureCNN


def settings(algorithm: Literal["dqn", "td3", "sac"]) -> ReplaySettings:
    return ReplaySettings(algorithm=algorithm, hidden_sizes=(5, 4), minibatch_size=8)


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, outputs)
    )


def counted(algorithm: Literal["td3", "sac"], improves: bool) -> int:
    """Count a step as the equations have it: observations of 3 numbers, actions of 2."""
    policy = network(3, 4 if algorithm == "sac" else 2)
    critics, targets = [[network(5, 1) for _ in range(2)] for _ in range(2)]
    observation, action = torch.randn(8, 3), torch.randn(8, 2)

    def values(networks: list[nn.Module], action: Tensor) -> Tensor:
        return torch.stack([one(torch.cat([observation, action], -1)) for one in networks])

    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            target = values(targets, policy(observation)[:, :2]).amin(0)
        autograd.backward((values(critics, action) - target).square().mean())
        if improves:
            for critic in critics:
                critic.requires_grad_(False)
            judges = critics if algorithm == "sac" else critics[:1]
            autograd.backward(values(judges, policy(observation)[:, :2]).mean())
    return int(counter.get_total_flops())


def test_the_formula_counts_what_the_equations_take() -> None:
    assert flops_per_step(settings("sac"), 3, 2) == counted("sac", improves=True)
    with_policy, without = counted("td3", improves=True), counted("td3", improves=False)
    assert flops_per_step(settings("td3"), 3, 2) == (with_policy + without) / 2


def test_a_step_of_dqn_takes_one_network() -> None:
    values, target, observation = network(3, 2), network(3, 2), torch.randn(8, 3)
    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            goal = target(observation)
        (values(observation) - goal).square().mean().backward()
    assert flops_per_step(settings("dqn"), 3, 2) == counter.get_total_flops()


def test_a_step_of_sac_on_halfcheetah() -> None:
    workload = WORKLOADS["sac-halfcheetah"]
    assert isinstance(workload.settings, ReplaySettings)
    policy = 2 * 256 * (17 * 256 + 256 * 256 + 256 * 12)
    critic = 2 * 256 * (23 * 256 + 256 * 256 + 256)
    first = 2 * 256 * 256
    target = policy + 2 * critic
    critics = 2 * (3 * critic - 23 * first)
    improvement = 3 * policy - 17 * first + 4 * critic
    assert flops_per_step(workload.settings, 17, 6) == target + critics + improvement == 581_566_464


def test_droq_moves_its_policy_once_for_all_gradient_steps_of_a_step() -> None:
    settings = ReplaySettings(
        algorithm="droq", hidden_sizes=(5, 4), minibatch_size=8, gradient_steps=20
    )
    with_policy, without = counted("sac", improves=True), counted("sac", improves=False)
    assert flops_per_step(settings, 3, 2) == 19 * without + with_policy


def test_the_median_chunk_counts() -> None:
    now, calls = 0.0, 0

    def call() -> None:
        nonlocal now, calls
        calls += 1
        now += 0.02 if 60 < calls <= 110 else 0.01  # one slow chunk

    assert calls_per_second(call, 2.9, warm_up=10, clock=lambda: now) == pytest.approx(100.0)
    assert calls == 10 + 5 * 50


def test_both_libraries_multiply() -> None:
    found = products.products_per_second(seconds=0.0)
    assert set(found) == {"mkl", "onednn"}
    assert all(rate > 0.0 for rate in found.values())


def test_steps_of_replay_and_images_have_a_limit() -> None:
    limited = [name for name, workload in WORKLOADS.items() if workload.has_product_limit]
    assert limited == [
        *("ppo-pong", "dqn-cartpole", "td3-halfcheetah", "sac-halfcheetah", "droq-hopper")
    ]


def test_a_step_with_images_takes_what_its_network_does() -> None:
    network = nn.Sequential(NatureCNN((4, 84, 84)), nn.Linear(512, 7))
    image = torch.zeros(1, 4, 84, 84)
    with FlopCounterMode(display=False) as counter:
        with torch.no_grad():
            network(image)
        network(image).sum().backward()
    one_epoch = counter.get_total_flops()
    assert flops_per_image_step(num_epochs=1, num_actions=6) == one_epoch


def test_the_share_of_the_limit_is_taken_within_rounds() -> None:
    def figures(rate: float) -> dict[str, float]:
        return {"rate": rate, "warm_up_seconds": 1.0, "peak_memory_mb": 1.0}

    def found(mkl: float, onednn: float) -> dict[str, float]:
        return {"flops": 5e8, "mkl": mkl, "onednn": onednn}

    rounds = [
        {"ours": figures(200.0), "sb3": figures(100.0), "products": found(1e11, 2e11)},  # 400
        {"ours": figures(100.0), "products": found(1e11, 0.5e11)},  # 200
        {"ours": figures(300.0)},  # whose products failed
        {"ours": figures(180.0), "products": found(1e11, 1e11)},  # 200
    ]
    text = speed_table({"sac-halfcheetah": Measurement(rounds, 5.0, "a machine")})
    assert (
        "Matrix-product limit of `sac-halfcheetah`: 500 MFLOP per step, at 100 GFLOP/s "
        "(MKL) or 100 (oneDNN), the faster of which allows 200 steps/s. Reached: ours, compiled "
        "50 %, Stable-Baselines3 25 %."
    ) in text
    plain = speed_table({"sac-halfcheetah": Measurement(rounds[2:3], 5.0, "a machine")})
    assert "limit" not in plain
