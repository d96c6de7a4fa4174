"""The peers' side of the benchmarks: Stable-Baselines3, sb3-contrib, and SBX.

They share one interface. They are imported by name when they are used, because only the benchmark
environment has them.
"""

import importlib
import importlib.util
import math
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from bench import episodes
from bench.curve import Curve
from bench.episodes import Episodes, make_env
from bench.plan import Outcome, Run
from bench.progress import Progress
from bench.span import Span
from bench.workloads import PPOSettings, ReplaySettings, TRPOSettings, Workload

_ENDLESS = 10**9
_MODULES = {"sb3": ("stable_baselines3", "sb3_contrib"), "sbx": ("sbx",)}
_SCHEDULE = re.compile(r"linear\(([^,]+),([^,]+)\)")


def measure(workload: Workload, span: Span, *, system: str, device: str) -> None:
    """Train until a span is over.

    Args:
        workload: what to train.
        span: marked in the first environment step after every update.
        system: ``sb3`` or ``sbx``.
        device: of the networks; SBX takes the one that JAX finds.
    """
    settings = workload.settings
    policy = "MlpPolicy"
    networks: dict[str, object] = {"net_arch": list(settings.hidden_sizes)}
    vectorizer = "DummyVecEnv"
    if isinstance(settings, PPOSettings):
        if settings.image_net:
            policy, vectorizer = "CnnPolicy", "SubprocVecEnv"
        name, num_envs, options = "PPO", settings.num_envs, _ppo_options(settings)
        if settings.lstm_size is not None:
            name, policy = "RecurrentPPO", "MlpLstmPolicy"
            networks |= {"lstm_hidden_size": settings.lstm_size}
    elif isinstance(settings, TRPOSettings):
        name, num_envs, options = "TRPO", settings.num_envs, _trpo_options(settings)
    else:
        name, num_envs, options = settings.algorithm.upper(), 1, _replay_options(settings)
        if settings.algorithm == "droq":
            name = "SAC"
            networks |= {"dropout_rate": settings.critic_dropout, "layer_norm": True}
    model = _algorithm(system, name)(
        policy,
        _make_envs(workload.env, num_envs, 0, vectorizer),
        learning_rate=settings.learning_rate,
        batch_size=settings.minibatch_size,
        gamma=settings.gamma,
        policy_kwargs=networks,  # activations are their defaults
        seed=0,
        device=device,
        **options,
    )
    updates = 0

    def after_step(_locals: object, _globals: object) -> bool:
        nonlocal updates
        if model._n_updates == updates:
            return True
        updates = model._n_updates
        return not span.mark(model.num_timesteps)

    try:
        model.learn(_ENDLESS, callback=after_step)
    finally:
        model.get_env().close()


def _ppo_options(settings: PPOSettings) -> dict[str, object]:
    return {
        "n_steps": settings.num_steps,
        "n_epochs": settings.num_epochs,
        "gae_lambda": settings.gae_lambda,
        "clip_range": settings.clip_range,
        "ent_coef": settings.entropy_coef,
        "vf_coef": settings.value_coef,
        "max_grad_norm": settings.max_grad_norm,
    }


def _trpo_options(settings: TRPOSettings) -> dict[str, object]:
    return {
        "n_steps": settings.num_steps,
        "n_critic_updates": settings.num_epochs,
        "gae_lambda": settings.gae_lambda,
        "target_kl": settings.max_kl,
        "cg_max_steps": settings.cg_steps,
        "cg_damping": settings.cg_damping,
        "line_search_max_iter": settings.num_backtracks,
        "line_search_shrinking_factor": settings.backtrack_ratio,
    }


def _algorithm(system: str, name: str) -> Callable[..., Any]:
    """Find an algorithm by name in the first of a system's libraries that has it."""
    for module in _MODULES[system]:
        if importlib.util.find_spec(module) is not None:
            found = getattr(importlib.import_module(module), name, None)
            if found is not None:
                return cast("Callable[..., Any]", found)
    raise RuntimeError(f"{name} is in none of {', '.join(_MODULES[system])}")


def _replay_options(settings: ReplaySettings) -> dict[str, object]:
    options: dict[str, object] = {
        "buffer_size": settings.buffer_size,
        "learning_starts": settings.learning_starts,
        "train_freq": 1,
        "gradient_steps": settings.gradient_steps,
    }
    if settings.algorithm == "dqn":
        return {**options, "target_update_interval": settings.target_update_every}
    if settings.algorithm == "droq":
        options["policy_delay"] = settings.gradient_steps
    return {**options, "tau": settings.tau}


def learn(run: Run, weights: Path, device: str) -> Outcome:
    """Train with the interface that the peers share, and keep the policy's weights.

    See `make_model` for the options.
    """
    model = make_model(run, device)
    progress = Progress(run.steps)
    curve = Curve(run.steps)

    def recent_return() -> float:  # over the last 100 episodes, as ours
        returns = [episode["r"] for episode in model.ep_info_buffer]
        return sum(returns) / len(returns) if returns else math.nan

    def after_step(_locals: object, _globals: object) -> bool:
        progress.report(model.num_timesteps)
        curve.note(model.num_timesteps, recent_return)
        return True

    start = time.perf_counter()
    model.learn(run.steps, callback=after_step)
    seconds = time.perf_counter() - start
    _save(model, weights)
    found = _evaluate(model, run)
    model.get_env().close()
    return Outcome(
        episodes=found,
        total_steps=model.num_timesteps,
        steps_per_second=model.num_timesteps / seconds,
        curve=curve.points,
    )


def evaluate(run: Run, weights: Path, device: str) -> Episodes:
    """Evaluate a policy that `learn` kept."""
    model = make_model(run, device)
    tensors = importlib.import_module("safetensors.torch").load_file(weights)
    statistics = {name: tensors.pop(f"obs_rms.{name}") for name in _statistics(model)}
    _set_weights(model, tensors)
    for name, tensor in statistics.items():
        setattr(model.get_vec_normalize_env().obs_rms, name, tensor.numpy())
    found = _evaluate(model, run)
    model.get_env().close()
    return found


def make_model(run: Run, device: str = "cpu") -> Any:
    """Build the model of a run, with its environments.

    Beside the algorithm's own arguments the options may hold ``library``, which is ``sb3`` or
    ``sbx``, ``name``, where the algorithm has another one there, ``n_envs``, ``vectorizer`` for the
    class that steps them, ``policy``, ``mask_velocity`` to hide velocities as our environments do,
    ``hindsight`` for the arguments of its ``HerReplayBuffer``, ``noise_std`` for Gaussian noise on
    actions in [-1, 1], ``reward_scale`` for a factor on the rewards that are learned from,
    ``normalize`` for running statistics of observations and rewards, and ``as_ours`` for a way of
    `bench.as_ours`. A text such as ``linear(0.001, 0.0)`` is a schedule.
    """
    options: dict[str, object] = dict(run.options)
    num_envs = cast("int", options.pop("n_envs", 1))
    vectorizer = str(options.pop("vectorizer", "DummyVecEnv"))
    system = str(options.pop("library", "sb3"))
    name = str(options.pop("name", run.algorithm.upper()))
    policy = options.pop("policy", "MlpPolicy")
    is_masked = bool(options.pop("mask_velocity", False))
    is_normalized = options.pop("normalize", False)
    gamma = options.get("gamma", 0.99)
    way = options.pop("as_ours", None)
    options = {name: _argument(value) for name, value in options.items()}
    if isinstance(kwargs := options.get("policy_kwargs"), dict) and "activation_fn" in kwargs:
        activations = {"tanh": "Tanh", "relu": "ReLU", "elu": "ELU"}
        activation = activations[kwargs["activation_fn"]]
        kwargs["activation_fn"] = getattr(importlib.import_module("torch.nn"), activation)

    library = importlib.import_module("stable_baselines3")
    if (hindsight := options.pop("hindsight", None)) is not None:
        options["replay_buffer_class"] = library.HerReplayBuffer
        options["replay_buffer_kwargs"] = hindsight
    normalize = importlib.import_module("stable_baselines3.common.vec_env").VecNormalize
    scale = options.pop("reward_scale", None)
    envs = _make_envs(
        run.env,
        num_envs,
        run.seed,
        vectorizer,
        mask_velocity=is_masked,
        wrapper_class=None if scale is None else _scaled_rewards(cast("float", scale)),
    )
    if is_normalized:
        envs = normalize(envs, gamma=gamma)
    if (noise_std := options.pop("noise_std", None)) is not None:
        noise = importlib.import_module("stable_baselines3.common.noise").NormalActionNoise
        size = envs.action_space.shape[0]
        options["action_noise"] = noise(np.zeros(size), np.full(size, noise_std))
    model = _algorithm(system, name)(policy, envs, seed=run.seed, device=device, **options)
    if way is not None:
        importlib.import_module("bench.as_ours").WAYS[str(way)](model)
    return model


def _make_envs(
    env: str,
    num_envs: int,
    seed: int,
    vectorizer: str,
    *,
    mask_velocity: bool = False,
    wrapper_class: Callable[[object], object] | None = None,
) -> Any:
    """Make environments as ours are, for training."""
    make_vec_env = importlib.import_module("stable_baselines3.common.env_util").make_vec_env
    vec_env = importlib.import_module("stable_baselines3.common.vec_env")
    return make_vec_env(
        partial(make_env, env, mask_velocity=mask_velocity),
        n_envs=num_envs,
        seed=seed,
        vec_env_cls=getattr(vec_env, vectorizer),
        wrapper_class=wrapper_class,
    )


def _save(model: Any, path: Path) -> None:
    tensors = {name: tensor.clone() for name, tensor in _weights(model).items()}
    tensors |= {f"obs_rms.{name}": value for name, value in _statistics(model).items()}
    importlib.import_module("safetensors.torch").save_file(tensors, path)


def _weights(model: Any) -> dict[str, Any]:
    """Return a policy's parameters, whose tree JAX has under ``actor_state``."""
    if not hasattr(model.policy, "actor_state"):
        return dict(model.policy.state_dict())
    as_tensor = importlib.import_module("torch").as_tensor
    tree = importlib.import_module("flax.traverse_util")
    flat = tree.flatten_dict(model.policy.actor_state.params, sep="/")
    return {name: as_tensor(np.array(array)) for name, array in flat.items()}


def _set_weights(model: Any, tensors: dict[str, Any]) -> None:
    if not hasattr(model.policy, "actor_state"):
        model.policy.load_state_dict(tensors)
        return
    tree = importlib.import_module("flax.traverse_util")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    params = tree.unflatten_dict(arrays, sep="/")
    model.policy.actor_state = model.policy.actor_state.replace(params=params)


def _statistics(model: Any) -> dict[str, Any]:
    """Return mean and variance of observations as tensors, where they are normalized."""
    normalizer = model.get_vec_normalize_env()
    if normalizer is None:
        return {}
    as_tensor = importlib.import_module("torch").as_tensor
    return {name: as_tensor(getattr(normalizer.obs_rms, name)) for name in ("mean", "var")}


def predictor(model: Any) -> episodes.Predict:
    """Return a model's deterministic policy for observations as the environment gives them."""
    normalizer = model.get_vec_normalize_env()

    def predict(observation: Any, state: Any, starts: Any) -> tuple[Any, Any]:
        if normalizer is not None:
            observation = normalizer.normalize_obs(observation)
        actions, state = model.predict(observation, state, starts, deterministic=True)
        return actions, state

    return predict


def _evaluate(model: Any, run: Run) -> Episodes:
    is_masked = bool(run.options.get("mask_velocity", False))
    make = partial(make_env, run.env, True, mask_velocity=is_masked)
    return episodes.evaluate(predictor(model), make)


def _scaled_rewards(scale: float) -> Callable[[object], object]:
    """Return a wrapper that multiplies rewards."""
    transform = importlib.import_module("gymnasium.wrappers").TransformReward
    return lambda env: transform(env, lambda reward: scale * reward)


def linear_schedule(text: str) -> Callable[[float], float] | None:
    """Read a linear schedule as a function of how much of the run is left, from 1 to 0.

    Args:
        text: such as ``linear(0.001, 0.0)``; any other text is no schedule.
    """
    match = _SCHEDULE.fullmatch(text)
    if match is None:
        return None
    start, end = float(match[1]), float(match[2])
    return lambda left: end + (start - end) * left


def _argument(value: object) -> object:
    if isinstance(value, dict):
        return {name: _argument(item) for name, item in value.items()}
    if isinstance(value, str):
        return linear_schedule(value) or value
    return value
