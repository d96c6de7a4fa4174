"""Single updates of replay algorithms beside Stable-Baselines3's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import gymnasium
import torch
from torch import Tensor

from bench.parity_data import (
    ACTION_SIZE,
    EPSILON,
    NUM_ACTIONS,
    OPTIMIZER,
    SIZE,
    Found,
    Noisy,
    Weights,
    apart_by_part,
    library,
    renamed,
)
from rl_algos_offpolicy import (
    DDPG,
    DQN,
    SAC,
    TD3,
    DDPGConfig,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import ReplayBatch

_BATCH, _NUM_UPDATES = 128, 20
_RATE = 1e-3
_HIDDEN = (64, 64)


def compare_dqn() -> list[Found]:
    config = DQNConfig(
        learning_rate=_RATE,
        double=False,
        tau=1.0,
        target_update_every=500,
        max_grad_norm=10.0,
        optimizer=OPTIMIZER,
    )
    env = Noisy(is_discrete=True)
    actor = _actor(env, "greedy", num_critics=1)
    return [_replayed(_model("DQN", env), actor, partial(DQN, config=config))]


def compare_ddpg() -> list[Found]:
    def make(options: dict[str, Any], actor: OffPolicyActor) -> AnyAlgorithm:
        return DDPG(actor, DDPGConfig(tau=0.005, **options))

    return _actor_critic("DDPG", "deterministic", make, num_critics=1)


def compare_td3() -> list[Found]:
    def make(options: dict[str, Any], actor: OffPolicyActor) -> AnyAlgorithm:
        return TD3(actor, TD3Config(**options))

    return _actor_critic("TD3", "deterministic", make)


def compare_sac() -> list[Found]:
    def make(options: dict[str, Any], actor: OffPolicyActor) -> AnyAlgorithm:
        return SAC(actor, SACConfig(temperature_learning_rate=_RATE, **options))

    return _actor_critic("SAC", "stochastic", make)


def _actor_critic(
    name: str,
    policy: PolicyKind,
    make: Callable[[dict[str, Any], OffPolicyActor], AnyAlgorithm],
    *,
    num_critics: int = 2,
) -> list[Found]:
    """Compare an algorithm with policy and critics.

    Args:
        name: of the algorithm.
        policy: of the actor.
        make: builds it with the options that the three have in common.
        num_critics: of the actor.
    """
    env = Noisy(is_discrete=False)
    model = _model(name, env)
    options = {
        "policy_learning_rate": _RATE,
        "critic_learning_rate": _RATE,
        "optimizer": OPTIMIZER,
    }
    return [_replayed(model, _actor(env, policy, num_critics), partial(make, options))]


def _model(name: str, env: Noisy) -> Any:
    networks = {"net_arch": list(_HIDDEN), "optimizer_kwargs": {"eps": EPSILON}}
    model = getattr(library("stable_baselines3"), name)
    return model(
        "MlpPolicy", env, seed=0, device="cpu", learning_rate=_RATE, policy_kwargs=networks
    )


def _actor(env: Noisy, policy: PolicyKind, num_critics: int = 2) -> OffPolicyActor:
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=_HIDDEN, num_critics=num_critics)
    return OffPolicyActor(env.observation_space, env.action_space, config)


def _replayed(
    model: Any,
    actor: OffPolicyActor,
    make: Callable[[OffPolicyActor], AnyAlgorithm],
) -> Found:
    model._setup_learn(1000)
    model.policy.set_training_mode(True)
    actor.load_state_dict(start := replay_weights(model))
    algorithm = make(actor)  # whose targets are copies
    is_discrete = isinstance(actor.action_space, gymnasium.spaces.Discrete)
    generator = torch.Generator().manual_seed(1)
    for _ in range(_NUM_UPDATES):
        theirs, ours = _batches(generator, is_discrete=is_discrete)
        drawn = algorithm.draw_update_noise(ours)
        with (
            mock.patch.object(model.replay_buffer, "sample", return_value=theirs),
            _noise([drawn[key] for key in ("target", "now", "next") if key in drawn]),
        ):
            model.train(gradient_steps=1, batch_size=_BATCH)
        algorithm.gradients.step(ours, drawn)
    apart = apart_by_part(start, replay_weights(model), actor.state_dict())
    return Found(type(model).__name__, _NUM_UPDATES, apart)


def _batches(generator: torch.Generator, *, is_discrete: bool) -> tuple[Any, ReplayBatch]:
    def draw(*size: int) -> Tensor:
        return torch.randn(_BATCH, *size, generator=generator)

    now, after, reward = draw(SIZE), draw(SIZE), draw(1)
    ended = torch.rand(_BATCH, 1, generator=generator) < 0.1
    action = draw(ACTION_SIZE).clamp(-1.0, 1.0)
    if is_discrete:
        action = torch.randint(NUM_ACTIONS, (_BATCH, 1), generator=generator)
    samples = library("stable_baselines3.common.type_aliases").ReplayBufferSamples
    ones = torch.ones(_BATCH)
    ours = ReplayBatch(
        observation=now,
        action=action[:, 0] if is_discrete else action,
        reward=reward,
        num_steps=ones.long(),
        terminated=ended[:, 0],
        next_observation=after,
        weight=ones,
        mask=ones,
        index=torch.zeros(_BATCH, 2, dtype=torch.int64),
    )
    return samples(now, action, after, ended.float(), reward), ours


@contextmanager
def _noise(drawn: list[Tensor]) -> Iterator[None]:
    """Let the peer take its normal numbers, in the order in which it asks, from what was drawn.

    Its DDPG asks for some that it multiplies by 0.
    """
    left = iter(drawn)

    def in_place(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        return tensor.copy_(mean + std * next(left, torch.zeros_like(tensor)))

    with (
        mock.patch.object(torch.Tensor, "normal_", in_place),
        mock.patch("torch.distributions.normal._standard_normal", side_effect=left),
    ):
        yield


def replay_weights(model: Any) -> Weights:
    """Return a copy of the networks of a model, without targets, by our names."""
    source = model.policy.state_dict()
    if not hasattr(model, "critic"):
        return _critics(source, ["q_net.q_net"])
    weights = _critics(source, [f"critic.qf{i}" for i in range(model.critic.n_critics)])
    hidden = "actor.mu" if "actor.mu.0.weight" in source else "actor.latent_pi"
    layers = {f"policy.torso.layers.hidden.{i}": f"{hidden}.{2 * i}" for i in range(2)}
    outputs = [f"{hidden}.4"] if hidden == "actor.mu" else ["actor.mu", "actor.log_std"]
    for kind in ("weight", "bias"):
        joint = torch.cat([source[f"{output}.{kind}"] for output in outputs])
        weights[f"policy.head.linear.{kind}"] = joint
    return weights | renamed(source, layers)


def _critics(source: Mapping[str, Tensor], prefixes: Sequence[str]) -> Weights:
    """Stack the layers of several critics, as our ensemble keeps them."""
    weights: Weights = {}
    for layer in range(3):
        for kind in ("weight", "bias"):
            stacked = torch.stack([source[f"{prefix}.{2 * layer}.{kind}"] for prefix in prefixes])
            plural = "weights" if kind == "weight" else "biases"
            weights[f"critics.head.{plural}.{layer}"] = (
                stacked if kind == "weight" else stacked[:, None]
            )
    return weights
