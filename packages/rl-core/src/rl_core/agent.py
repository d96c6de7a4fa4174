"""An agent: a recipe and its parts, for those who want one object."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.actor import Actor
from rl_core.algorithm import AnyAlgorithm
from rl_core.assembly import (
    Parts,
    build,
    build_test_envs,
    build_trainer,
    compose,
)
from rl_core.callbacks import Callback
from rl_core.checkpoint import Checkpoint, WeightSource, latest_checkpoint, save_checkpoint
from rl_core.env import as_numpy, category_problem
from rl_core.errors import CheckpointError, ConfigError, DataError, in_brief
from rl_core.evaluation import EvaluationResult, evaluate_policy, evaluation_mode
from rl_core.logger import Logger
from rl_core.masks import ActionMaskCheck
from rl_core.options import Sections, checked_sections
from rl_core.recipe import Recipe
from rl_core.seeding import spawn_generators
from rl_core.spaces import Space, event_shape, flatten_observation, leaf_spaces, tensor_dtype
from rl_core.stateful import StateReader
from rl_core.trainer import Trainer, TrainingResult
from rl_core.types import Array, ArrayObservation, Json, Observation, State


class Agent:
    """Trains, predicts, evaluates, saves.

    Build one with `make` or `load`; to compose parts by hand, use `Trainer`.

    Args:
        parts: built from a recipe.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._trainer: Trainer | None = None
        self._checkpoint: Checkpoint | None = None
        self._generator = spawn_generators(
            parts.recipe.seed, ["predict"], device=parts.algorithm.device
        )["predict"]

    @property
    def recipe(self) -> Recipe:
        """What the agent was built from; once it trains, with all that is settled only then."""
        return self.parts.recipe if self._trainer is None else self._trainer.recipe

    @property
    def algorithm(self) -> AnyAlgorithm:
        """What learns."""
        return self.parts.algorithm

    @property
    def actor(self) -> Actor:
        """What acts."""
        return self.parts.algorithm.actor

    def train(
        self,
        total_steps: int | None = None,
        *,
        total_episodes: int | None = None,
        total_updates: int | None = None,
        run_dir: str | Path | None = None,
        loggers: Sequence[Logger] = (),
        callbacks: Sequence[Callback] = (),
    ) -> TrainingResult:
        """Train until one count is reached; a second call must ask for more.

        Args:
            total_steps: environment transitions, counted from the first step of the run.
            total_episodes: finished episodes, counted likewise.
            total_updates: updates, counted likewise.
            run_dir: where logs and checkpoints go; None writes nothing.
            loggers: further sinks for metrics.
            callbacks: called at the turns of the loop.

        Raises:
            ConfigError: when not just one count is given, or it is not above what was reached.
        """
        if self._trainer is not None and (run_dir is not None or loggers or callbacks):
            raise ConfigError("run_dir, loggers and callbacks belong to the first call of train")
        if self._trainer is None:
            self._trainer = self._new_trainer(run_dir, loggers, callbacks)
        return self._trainer.train(
            total_steps, total_episodes=total_episodes, total_updates=total_updates
        )

    @torch.no_grad()
    def predict(
        self,
        observation: object,
        state: State | None = None,
        episode_start: npt.NDArray[np.bool_] | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.generic], State]:
        """Choose actions for observations.

        Args:
            observation: one, of the environment's shape, or a batch `(N, ...)` of them.
            state: what the last call returned; None starts episodes. Only recurrent actors use it.
            episode_start: shape `(N,)`, which rows start an episode; None starts none.
            deterministic: take the distribution's mode, or sample.

        Returns:
            The environment's action, or a batch `(N, ...)` of them, and the recurrent state.

        Raises:
            DataError: when the observation has another shape than the environment's, or holds
                something else than the numbers it may hold, or an action mask forbids every
                action.
        """
        space = self.actor.observation_space
        arrays = flatten_observation(space, observation)
        tensors, batched = self._as_batch(arrays)
        ActionMaskCheck(space, self.actor.action_space, "observation")(tensors)
        first = tensors if isinstance(tensors, Tensor) else next(iter(tensors.values()))
        count = len(first)
        if state is None:
            state = self.actor.actor_initial_states(count)
        start = torch.zeros(count, dtype=torch.bool, device=first.device)
        if episode_start is not None:
            start = torch.as_tensor(episode_start, device=first.device)
        noise = None if deterministic else self.actor.draw_noise((count,), self._generator)
        with evaluation_mode(self.actor):
            output = self.actor.get_action(tensors, state, noise, deterministic, start)
        action = output.env_action.cpu().numpy()
        return (action if batched else action[0]), output.state

    def evaluate(
        self, num_episodes: int = 100, *, seed: int = 0, deterministic: bool = True
    ) -> EvaluationResult:
        """Run the policy in fresh environments; see `evaluate_policy`."""
        envs = build_test_envs(self.recipe)
        try:
            return evaluate_policy(self, envs, num_episodes, seed=seed, deterministic=deterministic)
        finally:
            envs.close()

    def save(self, directory: str | Path) -> Path:
        """Write recipe and state, so that `load` brings the agent back.

        Returns:
            The checkpoint.

        Raises:
            CheckpointError: when this step was saved there before, or the disk refuses.
        """
        directory = Path(directory)
        trainer = self._trainer or self._new_trainer()
        path = save_checkpoint(
            directory / "checkpoints",
            trainer.total_steps,
            trainer.state_dict(),
            recipe=self.recipe,
            metadata={},
            resume_grade=self.parts.envs.resume_grade,
        )
        self.recipe.save(directory / "recipe.toml")
        return path

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint's weights now, and the rest of its state when training goes on.

        Raises:
            CheckpointError: when it belongs to an agent built otherwise.
        """
        self.parts.algorithm.load_modules(
            StateReader(checkpoint.state, str(checkpoint.path)).tree("algorithm")
        )
        self._checkpoint = checkpoint

    def close(self) -> None:
        """Close the environments."""
        self.parts.envs.close()

    def _new_trainer(
        self,
        run_dir: str | Path | None = None,
        loggers: Sequence[Logger] = (),
        callbacks: Sequence[Callback] = (),
    ) -> Trainer:
        """Build a trainer that goes on where the agent was saved."""
        trainer = build_trainer(self.parts, run_dir=run_dir, loggers=loggers, callbacks=callbacks)
        if self._checkpoint is not None:
            trainer.load_state_dict(self._checkpoint.state)
        return trainer

    def _as_batch(self, observation: ArrayObservation) -> tuple[Observation, bool]:
        """Bring observations to the declared dtypes and the device, with a batch axis."""
        leaves = leaf_spaces(self.actor.observation_space)
        device = self.actor.device
        if not isinstance(leaves, Mapping):
            array, is_batch = _checked("observation", observation, leaves)
            tensor = torch.as_tensor(array, dtype=tensor_dtype(leaves), device=device)
            return tensor if is_batch else tensor.unsqueeze(0), is_batch
        assert isinstance(observation, Mapping)
        tensors, batched = {}, []
        for key, leaf in leaves.items():
            array, is_batch = _checked(key, observation[key], leaf)
            tensor = torch.as_tensor(array, dtype=tensor_dtype(leaf), device=device)
            tensors[key] = tensor if is_batch else tensor.unsqueeze(0)
            batched.append(is_batch)
        if len(set(batched)) > 1:
            raise DataError("some entries of the observation are batches and others are not")
        return tensors, batched[0]


def make(
    algorithm: str,
    env: str,
    *,
    seed: int = 0,
    device: str = "auto",
    options: Sections | None = None,
    restart_model: WeightSource | None = None,
    **algorithm_options: Json,
) -> Agent:
    """Make an agent from names.

    Args:
        algorithm: registered name, such as ``"ppo"``.
        env: registered name or Gymnasium id.
        seed: of the whole run.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        options: by section: ``env``, ``actor``, ``algorithm``, ``storage``, ``trainer``.
        restart_model: the run, or one by part of the actor, whose weights it starts with; see
            `rl_core.checkpoint.load_weights`.
        **algorithm_options: short for ``options["algorithm"]``.

    Raises:
        ConfigError: for an unknown option, naming the nearest one, or one that is given twice and
            differently.
        CheckpointError: when ``restart_model`` does not fit.
        PluginError: for an unknown name.

    Example:
        >>> agent = make("ppo", "CartPole-v1", seed=0, learning_rate=1e-3)
        >>> agent.train(total_steps=50_000)
        >>> print(agent.evaluate())
    """
    sections = checked_sections(options)
    table = sections.setdefault("algorithm", {})
    for name, value in algorithm_options.items():
        if table.get(name, value) != value:
            raise ConfigError(
                f"{name} is {value!r}, but options['algorithm'] says {table[name]!r}; leave one out"
            )
    table.update(algorithm_options)
    recipe = compose(algorithm, env, sections, seed=seed, device=device)
    return Agent(build(recipe, restart_model=restart_model))


def load(
    directory: str | Path, *, parts: Mapping[str, object] | None = None, device: str | None = None
) -> Agent:
    """Load an agent from a run directory, or from what `Agent.save` wrote.

    Args:
        directory: holds ``checkpoints/``.
        parts: objects by section (``env``, ``actor``, ``algorithm``, ``storage``) in place of what
            the recipe names; those that it calls ``custom`` must be given.
        device: where to run; None takes what the recipe says.

    Raises:
        CheckpointError: when there is no readable checkpoint.
        ConfigError: when a custom component is missing, or an argument is of another kind.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ConfigError(f"directory is {directory!r}; expected the path of a run")
    directory = Path(directory)
    checkpoint = latest_checkpoint(directory / "checkpoints")
    if checkpoint is None:
        raise CheckpointError(f"{directory} holds no checkpoint; expected {directory}/checkpoints")
    if checkpoint.recipe_text is None:
        raise CheckpointError(f"{checkpoint.path} holds no recipe to build an agent from")
    recipe = Recipe.from_toml(checkpoint.recipe_text, str(checkpoint.path / "recipe.toml"))
    agent = Agent(build(recipe if device is None else recipe.replace(device=device), parts))
    agent.restore(checkpoint)
    return agent


def _checked(name: str, value: object, space: Space) -> tuple[Array, bool]:
    """Compare an observation with its space; say whether it has a batch axis."""
    try:
        array = as_numpy(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} is no array: {in_brief(error)}") from error
    shape = event_shape(space)
    if shape not in (array.shape, array.shape[1:]):
        raise DataError(
            f"{name}: expected shape {shape}, or {('N', *shape)} for a batch, got {array.shape}"
        )
    kinds = "biuf" if tensor_dtype(space).is_floating_point else "biu"
    if array.dtype.kind not in kinds:
        raise DataError(f"{name} has dtype {array.dtype}; expected {space.dtype}")
    if not np.isfinite(array).all():
        raise DataError(f"{name} holds NaN or infinity; expected finite numbers")
    problem = category_problem(name, space, array)
    if problem is not None:
        raise DataError(problem)
    return array, array.shape != shape
