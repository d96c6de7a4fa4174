"""Single updates of replay algorithms beside Stable-Baselines3's.

Its policies are stepped after their critics and by what these have just learned, ours together with
them. So critics learn while the policy is held, and the other way round; and both learn at once
when Stable-Baselines3 steps them together, as we do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import gymnasium
import torch
from torch import Tensor

from bench.as_ours import step_together
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

_BATCH = 128
_RATE = 1e-3
_HIDDEN = (64, 64)

_HELD_IN_TURN = ({"actor": 0.0, "critic": _RATE}, {"actor": _RATE, "critic": 0.0})
"""Learning rates by the peer's names of the networks."""

_BOTH = {"actor": _RATE, "critic": _RATE}


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

    return _held_in_turn("DDPG", "deterministic", make, num_critics=1, share=0.5)


def compare_td3() -> list[Found]:
    def make(options: dict[str, Any], actor: OffPolicyActor) -> AnyAlgorithm:
        return TD3(actor, TD3Config(**options))

    return _held_in_turn("TD3", "deterministic", make, share=0.5)


def compare_sac() -> list[Found]:
    def make(options: dict[str, Any], actor: OffPolicyActor) -> AnyAlgorithm:
        return SAC(actor, SACConfig(temperature_learning_rate=_RATE, **options))

    return _held_in_turn("SAC", "stochastic", make)


def _held_in_turn(
    name: str,
    policy: PolicyKind,
    make: Callable[[dict[str, Any], OffPolicyActor], AnyAlgorithm],
    *,
    num_critics: int = 2,
    share: float = 1.0,
) -> list[Found]:
    """Let critics learn while the policy is held, and the policy while critics are.

    Args:
        name: of the algorithm.
        policy: of the actor.
        make: builds it with the options that the three have in common.
        num_critics: of the actor.
        share: of the peer's loss of the critics that ours is.
    """
    found = []
    for rates in (*_HELD_IN_TURN, _BOTH):
        env = Noisy(is_discrete=False)
        model = _model(name, env)
        for group in model.critic.optimizer.param_groups:
            group["eps"] = EPSILON / share
        if rates is _BOTH:
            step_together(model)
        options = {
            "policy_learning_rate": rates["actor"],
            "critic_learning_rate": rates["critic"],
            "optimizer": OPTIMIZER,
        }
        actor = _actor(env, policy, num_critics)
        one = _replayed(model, actor, partial(make, options), rates)
        found.append(replace(one, algorithm=f"{name}, together") if rates is _BOTH else one)
    return found


def _model(name: str, env: Noisy) -> Any:
    networks = {"net_arch": list(_HIDDEN), "optimizer_kwargs": {"eps": EPSILON}}
    model = getattr(library("stable_baselines3"), name)
    return model("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=networks)


def _actor(env: Noisy, policy: PolicyKind, num_critics: int = 2) -> OffPolicyActor:
    config = OffPolicyActorConfig(policy=policy, hidden_sizes=_HIDDEN, num_critics=num_critics)
    return OffPolicyActor(env.observation_space, env.action_space, config)


def _replayed(
    model: Any,
    actor: OffPolicyActor,
    make: Callable[[OffPolicyActor], AnyAlgorithm],
    rates: Mapping[str, float] | None = None,
    updates: int = 20,
) -> Found:
    model._setup_learn(1000)
    model.policy.set_training_mode(True)
    rate_of = {id(getattr(model, part).optimizer): rate for part, rate in (rates or {}).items()}

    def set_rates(optimizers: Any) -> None:
        for optimizer in optimizers if isinstance(optimizers, list) else [optimizers]:
            for group in optimizer.param_groups:
                group["lr"] = rate_of.get(id(optimizer), _RATE)

    model._update_learning_rate = set_rates
    actor.load_state_dict(start := replay_weights(model))
    algorithm = make(actor)  # whose targets are copies
    is_discrete = isinstance(actor.action_space, gymnasium.spaces.Discrete)
    generator = torch.Generator().manual_seed(1)
    for _ in range(updates):
        theirs, ours = _batches(generator, is_discrete=is_discrete)
        drawn = algorithm.draw_update_noise(ours)
        with (
            mock.patch.object(model.replay_buffer, "sample", return_value=theirs),
            _noise([drawn[key] for key in ("target", "now", "next") if key in drawn]),
        ):
            model.train(gradient_steps=1, batch_size=_BATCH)
        algorithm.gradients.step(ours, drawn)
    apart = apart_by_part(start, replay_weights(model), actor.state_dict())
    return Found(type(model).__name__, updates, apart)


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
