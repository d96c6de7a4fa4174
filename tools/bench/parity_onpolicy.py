"""Single updates of on-policy algorithms beside Stable-Baselines3's: a rollout, one minibatch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.parity_data import (
    ACTION_SIZE,
    EPSILON,
    OPTIMIZER,
    SIZE,
    Found,
    Noisy,
    Weights,
    apart_by_part,
    library,
    renamed,
)
from rl_algos_onpolicy import A2C, PPO, TRPO, A2CConfig, OnPolicyActor, PPOConfig, TRPOConfig
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import Transition
from rl_core.gradients import OptimizerConfig
from rl_core.storage import StorageSpec, TensorSpec
from rl_storages import RolloutStorage

_NUM_STEPS, _NUM_UPDATES = 256, 5


def compare_ppo(*, is_discrete: bool) -> list[Found]:
    epochs = 4
    theirs = {"n_epochs": epochs, "batch_size": _NUM_STEPS, "ent_coef": 0.01, "vf_coef": 0.5}
    config = PPOConfig(
        num_epochs=epochs, minibatch_size=_NUM_STEPS, entropy_coef=0.01, value_loss_coef=1.0
    )
    return [
        _on_policy(
            f"PPO, {_kind(is_discrete)} actions",
            library("stable_baselines3").PPO,
            theirs,
            partial(PPO, config=config),
            is_discrete=is_discrete,
        )
    ]


def compare_a2c() -> list[Found]:
    theirs = {"use_rms_prop": False, "max_grad_norm": 1e9, "ent_coef": 0.01, "vf_coef": 1.0}
    config = A2CConfig(max_grad_norm=None, optimizer=OPTIMIZER, entropy_coef=0.01)
    model = library("stable_baselines3").A2C
    return [_on_policy("A2C with Adam", model, theirs, partial(A2C, config=config))]


def compare_trpo(*, is_discrete: bool) -> list[Found]:
    theirs = {"batch_size": _NUM_STEPS, "n_critic_updates": 4, "gae_lambda": 0.95}
    theirs |= {"cg_max_steps": 10, "line_search_max_iter": 15}
    dimensions = 1 if is_discrete else ACTION_SIZE  # over which its divergence is averaged
    config = TRPOConfig(
        max_kl=0.01 * dimensions,
        cg_damping=0.1 * dimensions,
        minibatch_size=_NUM_STEPS,
        num_epochs=4,
        gae_lambda=0.95,
        optimizer=OptimizerConfig(eps=EPSILON / 2),  # the loss is half of theirs
    )
    model = library("sb3_contrib").TRPO
    make = partial(TRPO, config=config)
    name = f"TRPO, {_kind(is_discrete)} actions"
    return [_on_policy(name, model, theirs, make, is_discrete=is_discrete)]


def _kind(is_discrete: bool) -> str:
    return "discrete" if is_discrete else "real"


def _on_policy(
    name: str,
    model_class: Callable[..., Any],
    options: Mapping[str, object],
    make: Callable[[OnPolicyActor], AnyAlgorithm],
    *,
    is_discrete: bool = False,
) -> Found:
    env = Noisy(is_discrete=is_discrete)
    model = model_class("MlpPolicy", env, seed=0, device="cpu", n_steps=_NUM_STEPS, **options)
    _, callback = model._setup_learn(_NUM_UPDATES * _NUM_STEPS * 1000)
    actor = OnPolicyActor(env.observation_space, env.action_space)
    actor.load_state_dict(start := on_policy_weights(model))
    algorithm, storage = make(actor), RolloutStorage(_NUM_STEPS)
    observation = TensorSpec((SIZE,), torch.float32)
    spec = StorageSpec(observation, actor.action_spec, 1, {}, {}, torch.device("cpu"))
    storage.allocate(spec, torch.Generator())
    is_start = True
    for _ in range(_NUM_UPDATES):
        env.rows.clear()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, _NUM_STEPS)
        following = [row[0] for row in env.rows[1:]] + [model._last_obs[0]]
        actions = model.rollout_buffer.actions
        for row, taken, after in zip(env.rows, actions, following, strict=True):
            before, reward, terminated, truncated, final = row
            storage.insert_transition(
                Transition(
                    before[None],
                    torch.as_tensor(taken).reshape(1, *spec.action.shape).to(spec.action.dtype),
                    np.array([reward], np.float32),
                    np.array([terminated]),
                    np.array([truncated]),
                    np.array([True]),
                    np.array([is_start]),
                    after[None],
                    final[None],
                    {},
                    {},
                )
            )
            is_start = terminated or truncated
        model.train()
        algorithm.update(storage)
    apart = apart_by_part(start, on_policy_weights(model), actor.state_dict())
    return Found(name, _NUM_UPDATES, apart)


def on_policy_weights(model: Any) -> Weights:
    """Return a copy of the networks of a model by our names."""
    source = model.policy.state_dict()
    named = {"action_head.linear": "action_net", "value_head.out": "value_net"}
    for part in ("policy", "value"):
        for ours, theirs in ((0, 0), (1, 2)):
            layer = f"mlp_extractor.{part}_net.{theirs}"
            named[f"{part}_torso.layers.hidden.{ours}"] = layer
    weights = renamed(source, named)
    if "log_std" in source:
        weights["action_head.log_std"] = source["log_std"].clone()
    return weights
