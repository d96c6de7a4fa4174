"""Stable-Baselines3 with one of our ways, to see what the difference does."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch


def hold_statistics(model: Any) -> None:
    """Take observations into the running statistics once per update, after it.

    The last one of a rollout is the first one of the next: it counts there, and is normalized anew.
    """
    normalizer = model.get_vec_normalize_env()
    statistics = normalizer.obs_rms
    include, train = statistics.update, model.train
    seen: list[Any] = []
    statistics.update = seen.append

    def train_and_include() -> None:
        train()
        include(np.concatenate(seen[:-1]))
        del seen[:-1]
        model._last_obs = normalizer.normalize_obs(normalizer.get_original_obs())

    model.train = train_and_include


def begin_statistics_with_nothing(model: Any) -> None:
    """Leave out the ten-thousandth of a sample with which running statistics begin."""
    normalizer = model.get_vec_normalize_env()
    normalizer.obs_rms.count = normalizer.ret_rms.count = 0.0


def divide_by_population_std(model: Any) -> None:
    """Divide advantages by the standard deviation of the minibatch, not the estimated one."""
    get = model.rollout_buffer.get
    model.normalize_advantage = False

    def normalized(batch_size: int | None = None) -> Iterator[Any]:
        for batch in get(batch_size):
            std, mean = torch.std_mean(batch.advantages, correction=0)
            yield batch._replace(advantages=(batch.advantages - mean) / (std + 1e-8))

    model.rollout_buffer.get = normalized


def move_targets_after_steps(model: Any) -> None:
    """Move DQN's target network after gradient steps, and count these, not environment steps."""
    polyak = importlib.import_module("stable_baselines3.common.utils").polyak_update
    interval, train = model.target_update_interval, model.train
    model.target_update_interval = 10**9

    def train_and_move(gradient_steps: int, batch_size: int = 100) -> None:
        for _ in range(gradient_steps):
            train(1, batch_size)
            if model._n_updates % interval == 0:
                polyak(model.q_net.parameters(), model.q_net_target.parameters(), model.tau)

    model.train = train_and_move


WAYS: Mapping[str, Callable[[Any], None]] = {
    "statistics once per update": hold_statistics,
    "population's standard deviation": divide_by_population_std,
    "targets move after gradient steps": move_targets_after_steps,
}
"""By what they are called in plans."""

TRIFLES: Mapping[str, Callable[[Any], None]] = {
    "statistics begin with nothing": begin_statistics_with_nothing,
}
"""What is too small to be tried alone."""
