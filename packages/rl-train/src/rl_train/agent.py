"""`Agent`: one object that trains, predicts, evaluates, saves and loads."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_core.actor import Actor, evaluation_mode
from rl_core.algorithm import AnyAlgorithm
from rl_core.config import LENGTHS, Count, Recipe, check_argument
from rl_core.errors import CheckpointError, ConfigError
from rl_core.logger import Logger
from rl_core.seeding import spawn_generator
from rl_core.stateful import StateReader
from rl_core.types import State, StateDict
from rl_envs import AnyEnv, is_built
from rl_train._prediction import observation_batch, start_batch, state_batch
from rl_train.builder import (
    Parts,
    Sections,
    build,
    build_trainer,
    compose,
)
from rl_train.builder.saved_actors import recipe_of
from rl_train.builder.saved_envs import run_problem
from rl_train.checkpoint import (
    Checkpoint,
    WeightSource,
    check_goes_on,
    list_checkpoints,
    read_run,
    save_checkpoint,
)
from rl_train.collecting import ActionMaskCheck
from rl_train.demonstrations import Source, fill_storage
from rl_train.evaluation import (
    EvaluationResult,
    deterministic_policy_error,
    draws_actions,
    evaluate_policy,
)
from rl_train.recipe_files import save_recipe
from rl_train.trainer import Callback, Trainer, TrainingResult
from rl_train.trainer.config import Named

_CALLED_ELSEWHERE = {
    "learn": "train(total_steps=...)",
    "num_timesteps": "total_steps",
    "set_env": "load(directory, env=...)",
    "get_env": "parts.envs",
    "env": "parts.envs",
    "policy": "actor",
    "observation_space": "actor.observation_space",
    "action_space": "actor.action_space",
    "replay_buffer": "parts.storage",
    "rollout_buffer": "parts.storage",
    "learning_rate": "algorithm.hyper, which holds what may change over a run",
    "logger": "train(loggers=[...]), or Trainer.record in a callback",
}
"""What an agent has under another name than other libraries."""


class Agent:
    """Trains, predicts, evaluates and saves.

    Create one with `make` or `load`. To combine parts of your own, use `Trainer`.

    Args:
        parts: parts that were built from a recipe.
        checkpoint: of an agent like this one, to go on from. Weights and hyper-parameters are
            loaded now, and may be changed; the rest is loaded when training starts.
        begins_episodes: whether the environments are others than the checkpoint's, in which new
            episodes begin.
        demonstrations: what the storage is filled with when training starts.

    Raises:
        CheckpointError: when the checkpoint has other networks or parameters.
    """

    def __init__(
        self,
        parts: Parts,
        checkpoint: Checkpoint | None = None,
        *,
        begins_episodes: bool = False,
        demonstrations: Source | None = None,
    ) -> None:
        self.parts = parts
        self._trainer: Trainer | None = None
        self._checkpoint = checkpoint
        self._newest: Path | None = None  # the checkpoint that was saved or loaded last
        self._begins_episodes = begins_episodes
        self._demonstrations = demonstrations
        if checkpoint is not None:
            saved = StateReader(checkpoint.state, str(checkpoint.path))
            parts.algorithm.load_modules(saved.tree("algorithm"))
            parts.algorithm.schedules.load_state_dict(saved.reader("algorithm").tree("schedules"))
            self._newest = checkpoint.path.resolve()
        self._generator = spawn_generator(parts.recipe.seed, "predict", parts.algorithm.device)

    def __repr__(self) -> str:
        recipe = self.recipe
        names = f"{recipe.algorithm.name} on {recipe.env.name}"
        return f"Agent({names}, seed {recipe.seed}, {self.total_steps:,} steps)"

    @property
    def recipe(self) -> Recipe:
        """The agent's recipe; training resolves the rest of its ``auto`` settings."""
        return self.parts.recipe if self._trainer is None else self._trainer.recipe

    @property
    def algorithm(self) -> AnyAlgorithm:
        """The algorithm that learns."""
        return self.parts.algorithm

    @property
    def actor(self) -> Actor:
        """The actor that chooses actions."""
        return self.parts.algorithm.actor

    def train(
        self,
        total_steps: int | None = None,
        *,
        total_episodes: int | None = None,
        total_updates: int | None = None,
        run_dir: str | Path | None = None,
        loggers: Sequence[Logger | Named] = (),
        callbacks: Sequence[Callback | Named] = (),
        progress: bool | Literal["auto", "bar", "log"] = "auto",
    ) -> TrainingResult:
        """Train until a total is reached; a second call continues and needs a larger total.

        Give exactly one of the three totals, or none for the length that the recipe has from a
        preset. All count from the first step of the run. Ctrl-C ends the run early, see
        `Trainer.train`; what was learned is kept.

        Args:
            total_steps: environment steps to train for.
            total_episodes: finished episodes to train for.
            total_updates: updates to train for.
            run_dir: directory for logs and checkpoints; None writes nothing. A loaded agent goes on
                in the directory that it was loaded from, if that is given.
            loggers: further loggers of metrics: objects, or registered names such as ``"csv"``.
            callbacks: objects whose methods the training loop calls, or registered names.
            progress: what to show on standard error: ``"bar"``, ``"log"`` for a line every few
                seconds, or ``"auto"`` for the bar on a terminal and lines elsewhere; False for
                nothing.

        Raises:
            ConfigError: when not exactly one total is given, or it has been reached already.
        """
        if self._trainer is not None and (run_dir is not None or loggers or callbacks):
            raise ConfigError(
                "run_dir, loggers and callbacks belong to the first call of train; leave them out: "
                "the run goes on with those that it began with"
            )
        totals: dict[str, int | None] = {
            "total_steps": total_steps,
            "total_episodes": total_episodes,
            "total_updates": total_updates,
        }
        if all(total is None for total in totals.values()):
            resolved = self.recipe.resolved
            totals |= {name: cast("int | None", resolved.get(name)) for name in LENGTHS}
        trainer = self._trainer or self._new_trainer(
            run_dir=run_dir, loggers=loggers, callbacks=callbacks
        )
        if self._demonstrations is not None and self._trainer is None:
            fill_storage(trainer.storage, self._demonstrations, self.actor)
        if progress and self._trainer is None:
            self._say_what_may_surprise()
        self._trainer = trainer
        try:
            return trainer.train(**totals, progress=progress)
        finally:
            if trainer.num_sessions == 0:  # it was refused, and may be tried with other values
                self._trainer = None
                self.parts.storage.reset()

    @torch.no_grad()
    def predict(
        self,
        observation: object,
        state: State | None = None,
        episode_start: npt.NDArray[np.bool_] | bool | None = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[np.generic], State]:
        """Choose actions for observations.

        Args:
            observation: one observation of the environment's shape, or a batch `(N, ...)`.
            state: recurrent state that the last call returned; None starts episodes.
            episode_start: shape `(N,)`, bool, which rows start an episode; None starts none.
            deterministic: True takes the mode of the distribution, False samples from it.

        Returns:
            The environment's action, or a batch `(N, ...)`, and the next recurrent state.

        Raises:
            ConfigError: when ``deterministic`` is not True or False, or is False and the policy is
                deterministic.
            DataError: when the observation has the wrong shape or dtype or is not finite, when an
                action mask forbids every action, or when ``state`` or ``episode_start`` does not
                fit the number of observations.
        """
        deterministic = check_argument("deterministic", deterministic, bool)
        actor = self.actor
        tensors, batched = observation_batch(observation, actor)
        space = actor.observation_space
        ActionMaskCheck(space, actor.action_space, "observation")(tensors)
        first = tensors if isinstance(tensors, Tensor) else next(iter(tensors.values()))
        count = len(first)
        states = state_batch(state, actor, count)
        starts = start_batch(episode_start, actor, count)
        if not deterministic and not self._draws_actions:
            raise deterministic_policy_error(actor)
        noise = None if deterministic else actor.draw_noise((count,), self._generator)
        with evaluation_mode(actor):
            output = actor.get_action(tensors, states, noise, deterministic, starts)
        action = output.env_action.cpu().numpy()
        return (action if batched else action[0]), output.state

    def evaluate(
        self,
        num_episodes: int = 100,
        *,
        seed: int = 0,
        deterministic: bool = True,
        envs: AnyEnv | None = None,
    ) -> EvaluationResult:
        """Evaluate the policy in new environments; see `evaluate_policy`.

        Episodes are as long as in the evaluations of training, see ``max_test_steps``.

        Args:
            num_episodes: number of episodes (>= 1).
            seed: seed of the environments and of the sampled actions.
            deterministic: True takes the mode of the distribution, False samples from it.
            envs: environments in place of the recipe's; they stay open. Those that the agent learns
                in may be among them: its running episodes end, and training goes on with new ones.

        Raises:
            ConfigError: when the run's environments are Python objects and none are given here, or
                ``num_episodes`` is not a whole number of at least 1.
        """
        if is_built(num_episodes):
            raise ConfigError("num_episodes is an environment; give that as envs=...")
        num_episodes = check_argument("num_episodes", num_episodes, Count)
        with ExitStack() as stack:
            if envs is None:
                if self.parts.test_envs is None:
                    raise ConfigError(
                        "the agent was given an environment that is built, and none to evaluate "
                        "in; pass envs to evaluate"
                    )
                envs = stack.enter_context(self.parts.test_envs(num_episodes=num_episodes))
            return evaluate_policy(
                self,
                envs,
                num_episodes,
                seed=seed,
                deterministic=deterministic,
                max_episode_steps=self.parts.trainer_config.max_test_steps,
            )

    @property
    def total_steps(self) -> int:
        """Environment transitions of the run so far; totals of `train` include them."""
        if self._trainer is not None:
            return self._trainer.total_steps
        return 0 if self._checkpoint is None else self._checkpoint.step

    def stop(self) -> None:
        """End the `train` that is going on, from any thread; see `Trainer.stop`."""
        if self._trainer is not None:
            self._trainer.stop()

    def save(self, directory: str | Path) -> Path:
        """Write the recipe and the state, for `load`.

        Returns:
            The directory of the checkpoint.

        Raises:
            CheckpointError: when the directory holds another recipe, or its newest checkpoint is
                not the one that was saved or loaded last, or writing fails.
            ConfigError: in the middle of an update.
        """
        directory = Path(directory)
        if self._trainer is None and self._checkpoint is not None:
            step, state = self._checkpoint.step, self._loaded_state(self._checkpoint)
            grade = self._checkpoint.resume_grade
        else:
            trainer = self._trainer or self._new_trainer()
            step, state = trainer.total_steps, trainer.savable_state()
            grade = trainer.resume_grade
        checkpoints, file = directory / "checkpoints", directory / "recipe.toml"
        for found in list_checkpoints(checkpoints)[-1:] or [file]:
            if found.resolve() != self._newest and found.exists():
                raise CheckpointError(
                    f"{found} is of another agent or another time, or was saved by training "
                    "itself; save into a new directory"
                )
        path = save_checkpoint(
            checkpoints, step, state, recipe=self.recipe, resume_grade=grade, replaces=True
        )
        save_recipe(self.recipe, file)
        self._newest = path.resolve()
        return path

    @cached_property
    def _draws_actions(self) -> bool:
        return draws_actions(self.actor)

    def close(self) -> None:
        """Close the environments."""
        self.parts.envs.close()

    if not TYPE_CHECKING:  # type checkers are to know what there is not

        def __getattr__(self, name: str) -> object:
            """Point to the method that another library calls by this name."""
            hint = f"; use {_CALLED_ELSEWHERE[name]}" if name in _CALLED_ELSEWHERE else ""
            raise AttributeError(f"Agent has no '{name}'{hint}", name=name, obj=self)

        def __setattr__(self, name: str, value: object) -> None:
            """Refuse what would change nothing, such as ``agent.learning_rate = 1e-4``."""
            if not (name.startswith("_") or name == "parts"):
                changes = f"; use algorithm.update_algorithm_parameter('{name}', ...)"
                hint = changes if name in self.algorithm.schedules else ""
                raise AttributeError(f"Agent has no '{name}' to set{hint}", name=name, obj=self)
            super().__setattr__(name, value)

    def _say_what_may_surprise(self) -> None:
        if self._begins_episodes:
            print(
                "new episodes begin, because load was given an env, which may be another one; "
                "parts={'env': ...} goes on in the run's own",
                file=sys.stderr,
            )
        if self.parts.test_envs is None:
            print(
                "the policy is not evaluated at the end: the environment is built, and there is no "
                "other to test in; to have one, give its class or a function that builds it",
                file=sys.stderr,
            )

    def _new_trainer(self, **options: object) -> Trainer:
        """Build a trainer that continues from where the agent was saved."""
        trainer = build_trainer(self.parts, **options)
        checkpoint = self._checkpoint
        if checkpoint is not None:
            check_goes_on(checkpoint)
            trainer.load_state_dict(self._loaded_state(checkpoint))
            if trainer.directory is not None:
                trainer.directory.go_on_from(checkpoint)
        return trainer

    def _loaded_state(self, checkpoint: Checkpoint) -> StateDict:
        """Return a checkpoint's state with the present weights and hyper-parameters."""
        now = self.algorithm.state_dict()
        saved = StateReader(checkpoint.state, str(checkpoint.path)).tree("algorithm")
        changed = {name: now[name] for name in ("modules", "frozen", "schedules")}
        return {**checkpoint.state, "algorithm": {**saved, **changed}}


def make(
    algorithm: str,
    env: AnyEnv,
    *,
    seed: int = 0,
    device: str = "auto",
    preset: bool | str = False,
    options: Sections | None = None,
    parts: Mapping[str, object] | None = None,
    demonstrations: Source | None = None,
    restart_model: WeightSource | None = None,
    **more_options: object,
) -> Agent:
    """Make an agent from the name of an algorithm and an environment.

    Args:
        algorithm: registered name, such as ``"ppo"``.
        env: registered name or Gymnasium id; a class or function that builds one environment; a
            class of vectors; or an environment that is built: a `gymnasium.Env`, a vector
            environment of Gymnasium's, a `VecEnv`.
        seed: seed of the whole run.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        preset: begin with the algorithm's tuned options for the environment, and its length of the
            run, or with those of this name; ``rl list presets`` shows which there are.
        options: options by section: ``env``, ``actor``, ``algorithm``, ``storage``, ``trainer``.
        parts: an ``actor`` or a ``storage`` that is built, such as an actor with networks of your
            own; `load` needs the like again.
        demonstrations: what fills the replay storage before the first step, see
            `rl_train.demonstrations.read_demonstrations`: a name of such, which the recipe keeps,
            or an object, such as a list of trajectories.
        restart_model: run whose weights the actor starts with, or one run for each part of the
            actor; see `rl_train.checkpoint.load_weights`.
        **more_options: options without their section, such as ``num_envs=4``, ``num_steps=128``
            or ``learning_rate=Linear(3e-4, 0.0)``; where two sections share a name, use
            ``options``.

    Raises:
        ConfigError: for an unknown option, naming the nearest one, or one that is given twice with
            different values.
        CheckpointError: when ``restart_model`` does not fit.
        PluginError: for an unknown name.

    Example:
        >>> agent = make("ppo", "CartPole-v1", seed=0, num_envs=4, learning_rate=1e-3)
        >>> agent.train(total_steps=50_000)
        >>> print(agent.evaluate())
    """
    if isinstance(demonstrations, str | os.PathLike):
        more_options["demonstrations"], demonstrations = str(demonstrations), None
    recipe = compose(
        algorithm,
        env,
        options,
        seed=seed,
        device=device,
        preset=preset,
        unplaced=more_options,
        parts=parts,
    )
    given = {**(parts or {}), **({} if isinstance(env, str) else {"env": env})}
    return Agent(build(recipe, given, restart_model=restart_model), demonstrations=demonstrations)


def load(
    directory: str | Path,
    *,
    env: AnyEnv | None = None,
    parts: Mapping[str, object] | None = None,
    device: str | None = None,
) -> Agent:
    """Load an agent from a run directory, or from what `Agent.save` wrote.

    Args:
        directory: run directory, whose newest checkpoint is taken; its folder ``best``, whose
            weights can act but not go on learning; or one checkpoint.
        env: environment to go on in, of any kind that `make` takes. It may be another one than
            the run's, with the same spaces, and new episodes begin in it.
        parts: objects by section (``actor``, ``algorithm``, ``storage``, ``env``) that are like
            those of the run, and required for those that its recipe calls ``custom``. Episodes of
            an ``env`` go on where they were saved.
        device: device of the networks; None takes the recipe's.

    Raises:
        CheckpointError: when there is no readable checkpoint.
        ConfigError: when a custom component is missing, an argument has the wrong type, or an
            environment is given twice.
    """
    if not isinstance(directory, str | os.PathLike):
        raise ConfigError(f"directory is {directory!r}; expected the path of a run")
    checkpoint = read_run(directory)
    recipe = recipe_of(checkpoint)
    recipe = recipe if device is None else replace(recipe, device=device)
    if env is not None:
        if "env" in (parts or {}):
            raise ConfigError("got an env, and another one in parts; leave one of them out")
        parts = {**(parts or {}), "env": env}
        checkpoint = _without_episodes(checkpoint)
    built = build(recipe, parts, is_saved=True)
    try:
        return Agent(built, checkpoint, begins_episodes=env is not None)
    except CheckpointError as error:
        built.envs.close()
        if env is None:
            raise
        actor = built.algorithm.actor
        problem = run_problem(recipe, actor.observation_space, actor.action_space)
        problem = problem or f"trained on {recipe.env.name}, does not fit the environment: {error}"
        raise CheckpointError(f"{directory}, {problem}") from error


def _without_episodes(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint for other environments, in which new episodes begin."""
    if "collector" not in checkpoint.state:  # it holds only what acts
        return checkpoint
    collector = StateReader(checkpoint.state, str(checkpoint.path)).tree("collector")
    return replace(
        checkpoint,
        state={**checkpoint.state, "collector": {**collector, "envs": {}, "running": {}}},
        resume_grade="weights" if checkpoint.resume_grade == "weights" else "episode",
    )
