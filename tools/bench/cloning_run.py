"""One row of the cloning benchmark: an expert, and two clones of it."""

import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gymnasium
import minari
from minari.data_collector import EpisodeBuffer

from bench.child import Json
from bench.episodes import NUM_EPISODES
from rl_core.config import ComponentSpec, Recipe
from rl_train import Agent, evaluate_policy
from rl_train.builder import Sections, build, build_test_envs, compose

_NUM_TEST_ENVS = 8
"""Stepping together in the evaluation, each with its fixed share of the episodes."""

_DATASET = "toolbox/expert-v0"


def clone(
    *,
    env: str,
    expert: str,
    expert_options: Sections,
    expert_steps: int,
    episodes: int,
    clone_options: Sections,
    clone_steps: int,
    seed: int,
    **_: Json,
) -> dict[str, Json]:
    """Train an expert and its clones as a row of the plan says, and return the returns of each."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        run_dir = Path(folder) / "expert"
        teacher = _agent(expert, env, expert_options, seed)
        teacher.train(expert_steps, run_dir=run_dir)
        _record(teacher, env, episodes, seed)
        watching = _with(clone_options, "algorithm", {"expert": str(run_dir)})
        reading = _with(clone_options, "trainer", {"demonstrations": _DATASET})
        # Without an expert steps are gradient steps; both clones take as many of those.
        watcher, reader = (_agent("bc", env, each, seed) for each in (watching, reading))
        watcher.train(clone_steps)
        reader.train(watcher.parts.algorithm.gradients.count)
        return {
            "expert": _returns(teacher, seed),
            "from_expert": _returns(watcher, seed),
            "from_data": _returns(reader, seed),
        }


def _agent(algorithm: str, env: str, options: Sections, seed: int) -> Agent:
    return Agent(build(compose(algorithm, env, options, seed=seed, device="cpu")))


def _with(options: Sections, section: str, more: Mapping[str, Json]) -> Sections:
    return {**options, section: {**options.get(section, {}), **more}}


def _record(expert: Agent, env_id: str, episodes: int, seed: int) -> None:
    """Make a Minari data set of what the expert does."""
    env = gymnasium.make(env_id)
    buffers = [_episode(expert, env, number, 1000 * seed + number) for number in range(episodes)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what is not told of the data set
        minari.create_dataset_from_buffers(_DATASET, buffers, env=env)
    env.close()


def _episode(
    expert: Agent, env: gymnasium.Env[object, object], number: int, seed: int
) -> EpisodeBuffer:
    observation, _ = env.reset(seed=seed)
    buffer = EpisodeBuffer(
        id=number,
        observations=[observation],
        actions=[],
        rewards=[],
        terminations=[],
        truncations=[],
        infos={},
    )
    over = False
    while not over:
        action, _ = expert.predict(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        buffer.observations.append(observation)
        buffer.actions.append(action)
        buffer.rewards.append(float(reward))
        buffer.terminations.append(terminated)
        buffer.truncations.append(truncated)
        over = terminated or truncated
    return buffer


def _returns(agent: Agent, seed: int) -> Json:
    envs = build_test_envs(_for_evaluation(agent.recipe))
    try:
        found = evaluate_policy(agent, envs, NUM_EPISODES, seed=seed)
    finally:
        envs.close()
    return [round(value, 4) for value in found.returns]


def _for_evaluation(recipe: Recipe) -> Recipe:
    env = recipe.env
    kwargs = {**env.kwargs, "num_envs": _NUM_TEST_ENVS}
    return replace(recipe, env=ComponentSpec("env", env.name, kwargs))
