"""The toolbox's side of the benchmarks."""

import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from bench import episodes
from bench.curve import Curve
from bench.episodes import Episodes
from bench.plan import Outcome, Run
from bench.progress import Progress
from bench.span import Span
from bench.workloads import PPOSettings, ReplaySettings, TRPOSettings, Workload
from rl_algos_offpolicy import (
    DQN,
    SAC,
    TD3,
    DQNConfig,
    OffPolicyActor,
    OffPolicyActorConfig,
    SACConfig,
    TD3Config,
)
from rl_algos_offpolicy.actor.config import PolicyKind
from rl_algos_onpolicy import PPO, TRPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig, TRPOConfig
from rl_core.algorithm import AnyAlgorithm
from rl_core.compile.function import CompileMode
from rl_core.env import VecEnv
from rl_core.storage import AnyStorage
from rl_envs import make_vec
from rl_storages import ReplayBuffer, RolloutStorage
from rl_train import Agent, Callback, Trainer, TrainerConfig
from rl_train.builder import build, compose

_ENDLESS = 10**9


def measure(
    workload: Workload, span: Span, *, is_compiled: bool, threads: int, device: str = "cpu"
) -> None:
    """Train until a span is over, with the parts that a user would put together.

    Args:
        workload: what to train.
        span: marked after every update.
        is_compiled: compile the gradient step.
        threads: of PyTorch.
        device: of the networks and of what they learn from.
    """
    settings = workload.settings
    num_envs = 1 if isinstance(settings, ReplaySettings) else settings.num_envs
    envs = make_vec(workload.env, num_envs, seed=0, vectorization=workload.vectorization)
    if not isinstance(settings, ReplaySettings):
        algorithm, storage = _from_rollouts(settings, envs, device)
        log_every = settings.num_steps * settings.num_envs  # after every update, as the peers do
    else:
        algorithm, storage = _from_replay(settings, envs, device)
        log_every = 1000
    compile_mode: CompileMode = "on" if is_compiled else "off"
    trainer = Trainer(
        envs,
        algorithm,
        storage,
        config=TrainerConfig(compile=compile_mode, num_threads=threads, log_every=log_every),
        seed=0,
        callbacks=[_Marks(span)],
    )
    try:
        trainer.train(total_steps=_ENDLESS, progress=False)
    finally:
        envs.close()


def _from_rollouts(
    settings: PPOSettings | TRPOSettings, envs: VecEnv, device: str
) -> tuple[AnyAlgorithm, AnyStorage]:
    others: dict[str, Any] = {}
    if isinstance(settings, PPOSettings):
        others["share_body"] = settings.image_net
        if settings.lstm_size is not None:
            others |= {"recurrent_net": "lstm", "recurrent_hidden_size": settings.lstm_size}
    actor = OnPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OnPolicyActorConfig(hidden_sizes=settings.hidden_sizes, activation="tanh", **others),
    ).to(device)
    algorithm: AnyAlgorithm = (
        _ppo(actor, settings) if isinstance(settings, PPOSettings) else _trpo(actor, settings)
    )
    return algorithm, RolloutStorage(num_steps=settings.num_steps)


def _trpo(actor: OnPolicyActor, settings: TRPOSettings) -> TRPO:
    config = TRPOConfig(
        max_kl=settings.max_kl,
        cg_steps=settings.cg_steps,
        cg_damping=settings.cg_damping,
        num_backtracks=settings.num_backtracks,
        backtrack_ratio=settings.backtrack_ratio,
        value_learning_rate=settings.learning_rate,
        num_epochs=settings.num_epochs,
        minibatch_size=settings.minibatch_size,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
    )
    return TRPO(actor, config)


def _ppo(actor: OnPolicyActor, settings: PPOSettings) -> PPO:
    config = PPOConfig(
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        num_epochs=settings.num_epochs,
        minibatch_size=settings.minibatch_size,
        clip_range=settings.clip_range,
        value_loss_coef=2.0 * settings.value_coef,  # its loss is half the squared error
        entropy_coef=settings.entropy_coef,
        max_grad_norm=settings.max_grad_norm,
    )
    return PPO(actor, config)


def _from_replay(
    settings: ReplaySettings, envs: VecEnv, device: str
) -> tuple[AnyAlgorithm, AnyStorage]:
    policies: dict[str, PolicyKind] = {"dqn": "greedy", "td3": "deterministic"}
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(
            policy=policies.get(settings.algorithm, "stochastic"),
            hidden_sizes=settings.hidden_sizes,
            num_critics=1 if settings.algorithm == "dqn" else 2,
            critic_dropout=settings.critic_dropout,
            critic_layer_norm=settings.algorithm == "droq",
        ),
    ).to(device)
    shared: dict[str, Any] = {
        "gamma": settings.gamma,
        "minibatch_size": settings.minibatch_size,
        "start_steps": settings.learning_starts,
        "update_after": settings.learning_starts,
        "num_minibatches": settings.gradient_steps,
    }
    rate = settings.learning_rate
    algorithm: AnyAlgorithm
    if settings.algorithm == "dqn":
        options = {**shared, "learning_rate": rate, "double": False}
        options |= {"tau": 1.0, "target_update_every": settings.target_update_every}
        algorithm = DQN(actor, DQNConfig(**options))
    else:
        options = {**shared, "policy_learning_rate": rate, "critic_learning_rate": rate}
        options["tau"] = settings.tau
        if settings.algorithm == "td3":
            algorithm = TD3(actor, TD3Config(**options))
        else:
            options |= {"temperature_learning_rate": rate, "policy_delay": settings.gradient_steps}
            algorithm = SAC(actor, SACConfig(**options))
    return algorithm, ReplayBuffer(size=settings.buffer_size)


def learn(run: Run, weights: Path, device: str) -> Outcome:
    """Train as the command line would, keep the weights, and evaluate what was learned."""
    curve = Curve(run.steps)
    with contextlib.closing(make_agent(run, device)) as agent:
        callbacks = [_Progress(Progress(run.steps)), _Returns(curve)]
        training = agent.train(run.steps, callbacks=callbacks, progress=False)
        if training.total_steps < run.steps:  # Ctrl-C ends it early
            raise KeyboardInterrupt
        save_file(
            {name: tensor.clone() for name, tensor in agent.actor.state_dict().items()}, weights
        )
        found = _evaluate(agent, run)
    return Outcome(
        episodes=found,
        total_steps=training.total_steps,
        steps_per_second=training.steps_per_second,
        curve=curve.points,
    )


def evaluate(run: Run, weights: Path, device: str) -> Episodes:
    """Evaluate a policy that `learn` kept."""
    with contextlib.closing(make_agent(run, device)) as agent:
        agent.actor.load_state_dict(load_file(weights))
        return _evaluate(agent, run)


def make_agent(run: Run, device: str = "cpu") -> Agent:
    """Build the agent of a run."""
    recipe = compose(run.algorithm, run.env, run.sections(), seed=run.seed, device=device)
    return Agent(build(recipe))


def _evaluate(agent: Agent, run: Run) -> Episodes:
    is_masked = bool(run.sections().get("env", {}).get("mask_velocity", False))
    return episodes.evaluate(
        agent.predict, partial(episodes.make_env, run.env, True, mask_velocity=is_masked)
    )


class _Marks(Callback):
    def __init__(self, span: Span) -> None:
        self._span = span

    def on_update_end(self, trainer: Trainer) -> bool:
        return self._span.mark(trainer.total_steps)


class _Progress(Callback):
    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def on_update_end(self, trainer: Trainer) -> None:
        self._progress.report(trainer.total_steps)


class _Returns(Callback):
    def __init__(self, curve: Curve) -> None:
        self._curve = curve

    def on_log(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._curve.note(trainer.total_steps, lambda: metrics["train/episode_return"])
