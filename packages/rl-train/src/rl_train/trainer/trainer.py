"""The trainer: all parts of a run together, and how a run is saved and resumed."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from rl_core.algorithm import Algorithm, AnyAlgorithm
from rl_core.config import LENGTHS, Recipe, check_argument
from rl_core.errors import ConfigError, in_brief
from rl_core.logger import Logger
from rl_core.seeding import checked_seed, spawn_generator, spawn_seed
from rl_core.stateful import StateReader
from rl_core.storage import AnyStorage, Storage
from rl_core.types import StateDict
from rl_envs import AnyEnv, as_vec_env
from rl_train.builder.components import as_table
from rl_train.builder.describe import changed_option, describe
from rl_train.builder.saved_actors import recipe_of
from rl_train.checkpoint import Checkpoint, ResumeGrade, check_goes_on, read_run
from rl_train.collecting import Collector, RewardScaler
from rl_train.demonstrations import fill_storage
from rl_train.evaluation import EvaluationResult
from rl_train.evaluation.evaluation import TRAINERS
from rl_train.storage_files import check_spec, state_of
from rl_train.trainer.budget import Budget
from rl_train.trainer.callbacks import Callback, callback_states, load_callback_states
from rl_train.trainer.config import Named, TrainerConfig
from rl_train.trainer.evaluator import Evaluator, TestEnvs, share_environments
from rl_train.trainer.interruption import Interruption
from rl_train.trainer.listeners import (
    build_callbacks,
    check_histograms,
    listeners,
    named_specs,
    open_loggers,
)
from rl_train.trainer.loop import Loop, TrainingResult
from rl_train.trainer.progress import Progress
from rl_train.trainer.run_directory import RunDirectory
from rl_train.trainer.setup import (
    check_episodes_end,
    check_parts,
    resolve_auto_settings,
    reuse_freed_memory,
    thread_count,
)
from rl_train.trainer.state import RunState

BatchT = TypeVar("BatchT")
ConfigT = TypeVar("ConfigT")

_HOW_ENVS_STEP = (
    *("env.vectorization", "env.num_workers", "env.timeout_s", "env.max_restarts"),
    "env.check",
)
"""Options that do not change what the environments are."""


class Trainer:
    """Collect, update, evaluate, log and save checkpoints until the run is over.

    The order of these is in `rl_train.trainer.loop`.

    Args:
        envs: environments to learn in, of any kind that `rl_train.make` takes; one is built from
            an id, a class or a function.
        algorithm: the algorithm, with its actor.
        storage: where transitions go; it is allocated here.
        config: options.
        seed: seed of every random generator of the run. Initial weights of parts that you build
            are drawn before: call ``torch.manual_seed`` first, as `rl_train.make` does. None draws
            a seed and keeps it, and leaves the environments the one they were made with.
        run_dir: directory for logs, checkpoints and the summary; None writes nothing.
        test_envs: separate environments to evaluate in, or what makes one or several.
        loggers: further receivers of metrics, closed when `train` ends: objects, or registered
            names such as ``"csv"``, which join those of the options.
        callbacks: called by the loop: objects, or registered names.
        recipe: what the parts were built from, kept in the run directory and its checkpoints;
            None writes one from the parts.

    Attributes:
        state: what the run knows of itself.
        evaluator: evaluates on the test environments.
        run_dir: where logs, checkpoints and the summary go, as it was given.
        directory: what the run leaves on disk; None without a ``run_dir``.
        num_sessions: how many sessions of training have begun.

    Raises:
        ConfigError: when parts or options contradict each other.
        SpaceError: when the actor was built for other spaces than the environments have.
    """

    def __init__(
        self,
        envs: AnyEnv,
        algorithm: Algorithm[ConfigT, BatchT],
        storage: Storage[BatchT],
        *,
        config: TrainerConfig | None = None,
        seed: int | None = None,
        run_dir: str | Path | None = None,
        test_envs: TestEnvs | None = None,
        loggers: Sequence[Logger | Named] = (),
        callbacks: Sequence[Callback | Named] = (),
        recipe: Recipe | None = None,
    ) -> None:
        config = config or TrainerConfig()
        self.algorithm: AnyAlgorithm = algorithm
        self.storage: AnyStorage = storage
        self.envs = envs = as_vec_env(envs)
        check_parts(envs, algorithm, storage, config)
        names, self._loggers = listeners("loggers", loggers, Logger, config.loggers)  # type: ignore[type-abstract]  # only compared with
        config = replace(config, loggers=names)
        names, own_callbacks = listeners("callbacks", callbacks, Callback, config.callbacks)
        self.config = config = replace(config, callbacks=names)
        self._logger_specs = named_specs("logger", config.loggers)
        self.callbacks = (*build_callbacks(config.callbacks), *own_callbacks)
        self.state = RunState(secrets.randbits(31) if seed is None else checked_seed(seed))
        self.num_sessions = 0
        self.run_dir = None if run_dir is None else Path(run_dir)
        self.directory = None if run_dir is None else RunDirectory(Path(run_dir).absolute())
        self.recipe = recipe or describe(envs, algorithm, storage, config, self.seed)
        self.recipe = replace(self.recipe, trainer=as_table(config))
        self.evaluator = Evaluator(algorithm, test_envs, envs, self.config)
        self._loop: Loop | None = None
        algorithm.generator = spawn_generator(self.seed, "algorithm", algorithm.device)
        algorithm.gradients.guard.mode = self.config.on_nonfinite
        self.collector = Collector(
            envs,
            algorithm,
            generator=spawn_generator(self.seed, "collector", algorithm.device),
            reward_scaler=RewardScaler(envs.num_envs) if self.config.scale_rewards else None,
            seed=None if seed is None else spawn_seed(self.seed, "envs"),
        )
        storage.allocate(self.collector.storage_spec(), spawn_generator(self.seed, "storage"))
        schedule = algorithm.schedule
        num_batches = schedule.batches_per_epoch(envs.num_envs)
        storage.check_batches(num_batches, schedule.minibatch_size, schedule.min_samples)
        TRAINERS.add(self)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.state.seed

    @property
    def updates(self) -> int:
        """Number of updates so far."""
        return self.state.updates

    @property
    def counts(self) -> dict[str, int]:
        """How many ``steps``, ``episodes`` and ``updates`` the run has so far."""
        return {
            "steps": self.total_steps,
            "episodes": self.collector.total_episodes,
            "updates": self.updates,
        }

    @property
    def resume_grade(self) -> ResumeGrade:
        """What a checkpoint brings back besides what was learned."""
        if not self.config.checkpoint_replay:
            return "weights"
        has_acted = self.algorithm.collects and self.total_steps > 0
        if has_acted and not self.collector.has_episodes:  # after a fault
            return "episode"
        return self.envs.resume_grade

    @property
    def total_steps(self) -> int:
        """Environment transitions so far."""
        return self.collector.total_steps

    def train(
        self,
        total_steps: int | None = None,
        *,
        total_episodes: int | None = None,
        total_updates: int | None = None,
        progress: bool | Literal["auto", "bar", "log"] = "auto",
    ) -> TrainingResult:
        """Train until a total is reached, which includes earlier and resumed sessions.

        Ctrl-C ends the session as `stop` does; pressed twice, it raises KeyboardInterrupt at once.
        It is left alone if the program handles that signal itself, or outside the main thread.

        Args:
            total_steps: environment transitions over all environments.
            total_episodes: finished episodes.
            total_updates: updates.
            progress: what to show on standard error, see `rl_train.Progress`; False shows
                nothing, True is ``"auto"``.

        Returns:
            How the run ended; ``stopped`` says whether that was before its target.

        Raises:
            ConfigError: when ``progress`` is unknown, not exactly one total is given, it has been
                reached already or counts episodes where none may ever end, no logger shows the
                histograms of ``log_histograms``, or evaluations ask for more tasks than there are.
            NonFiniteError: when a loss or gradient was not finite; the state before that step is
                saved, and so is its batch.
            EnvironmentFaultError: when an environment fails; the state before that is saved.
            DataError: when an action mask forbids everything; likewise.
        """
        if self._loop is not None:
            raise ConfigError(
                "this Trainer is training already; a callback may end or save the run, not train it"
            )
        check_argument("progress", progress, bool | Literal["auto", "bar", "log"])
        budget = Budget.choose(total_steps, total_episodes, total_updates)
        if budget.unit == "episodes":
            check_episodes_end(self)
        if budget.target <= budget.reached_before(self):
            raise ConfigError(
                f"total_{budget.unit} is {budget.target}, but the run already has "
                f"{budget.reached(self)} {budget.unit}; ask for more"
            )
        if self.config.log_histograms:
            check_histograms(self._loggers, self._logger_specs)
        self.evaluator.check_tasks()
        self._forget_cut_rollout()
        self._demonstrate()
        reuse_freed_memory()
        threads = resolve_auto_settings(self, budget)
        interruption = Interruption(saves=self.directory is not None)
        callbacks = [*self.callbacks, interruption]
        if progress:
            callbacks.append(Progress("auto" if progress is True else progress))
        try:
            loggers = (*self._loggers, *self._open_loggers())
            with thread_count(threads), interruption:
                self._loop = Loop(self, budget, callbacks, loggers)
                if self.directory is not None:
                    self.directory.remove_summary()
                self.num_sessions += 1
                return self._loop.run()
        finally:
            self._loop = None
            if self.directory is not None and self.num_sessions == 0:
                self.directory.discard()
            elif self.directory is not None:
                self.directory.close()

    def _open_loggers(self) -> list[Logger]:
        """Open the run directory and the registered loggers; then write the recipe."""
        logged = self.state.iteration.start.get("steps", self.total_steps)  # its line is to come
        if self.directory is None:
            return open_loggers(self._logger_specs, None, logged)
        record = self.directory.open(logged)
        try:
            others = open_loggers(self._logger_specs, self.directory.path, logged)
            self.directory.write_recipe(self.recipe)
        except BaseException:
            record.close()
            raise
        return [record, *others]

    def record(self, metrics: Mapping[str, float]) -> None:
        """Add numbers of your own to the next line of the log, such as in a callback.

        Each is averaged over the calls since the last line, and with what the algorithm logs by the
        same name. In `Callback.on_evaluation` they become a line of their own, of the same step.

        Raises:
            ConfigError: for anything but numbers by name.
        """
        try:
            numbers = {str(name): float(value) for name, value in metrics.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"record takes numbers by name, such as {{'my/metric': 1.0}}: {in_brief(error)}"
            ) from error
        self.state.means.add(numbers)

    def stop(self) -> None:
        """End the session soon, with a checkpoint and a summary.

        Collecting, the warm-up and evaluations end at once; an update is finished first. Nothing
        is evaluated or logged only because the session ends: what was due comes after a `resume`.
        If the environments can be saved exactly, a resumed run equals one that was not stopped.
        Callbacks, signal handlers and other threads may call this.
        """
        if self._loop is not None:
            self._loop.stop()

    def evaluate(self, num_episodes: int | None = None) -> EvaluationResult:
        """Evaluate the current policy on the test environments.

        Environments that are made for it are closed again, unless a session is running.

        Raises:
            ConfigError: when there are no test environments.
        """
        if num_episodes is None:
            num_episodes = self.config.num_test_episodes
        seed = spawn_seed(self.seed, "test")
        try:
            return self.evaluator.evaluate(num_episodes, seed)
        finally:
            if self._loop is None:
                self.evaluator.close()

    def save_checkpoint(self) -> Path:
        """Write a checkpoint of the whole run, unless this state is saved already.

        Raises:
            ConfigError: without a run directory, or with that of another run, or in the middle of
                an update.
            CheckpointError: when it cannot be written.
        """
        if self.directory is None:
            raise ConfigError("give the Trainer a run_dir to save checkpoints in")
        return self.directory.save(
            self.total_steps,
            self.savable_state(),
            recipe=self.recipe,
            resume_grade=self.resume_grade,
            keep=self.config.keep_checkpoints,
        )

    def resume(self) -> Checkpoint:
        """Continue from the newest readable checkpoint of the run directory.

        Newer ones that are damaged are warned of, and renamed when the run goes on. Seed, threads
        and whether to compile are those that the run began with.

        Returns:
            The checkpoint; its ``skipped`` lists the damaged ones.

        Raises:
            ConfigError: without a run directory, or when the environments, the actor, the algorithm
                or the storage have other options than the run began with.
            CheckpointError: when there is no readable checkpoint, or it does not fit.
        """
        if self.directory is None:
            raise ConfigError("give the Trainer the run_dir to resume from")
        checkpoint = read_run(self.directory.path)
        check_goes_on(checkpoint)
        began = recipe_of(checkpoint)
        sections = ("env", "actor", "algorithm", "storage")
        if changed := changed_option(began, self.recipe, sections, _HOW_ENVS_STEP):
            name, before, now = changed
            raise ConfigError(
                f"{name} is {now!r}, but {before!r} in {checkpoint.path}, and a run goes on as it "
                "began; give it that value, or train in another run_dir"
            )
        own = {name: value for name, value in self.recipe.resolved.items() if name in LENGTHS}
        saved = began.resolved
        kept = {name: value for name, value in saved.items() if not (own and name in LENGTHS)}
        self.load_state_dict(checkpoint.state)
        self.recipe = replace(self.recipe, seed=self.seed, resolved={**kept, **own})
        self.directory.go_on_from(checkpoint)
        return checkpoint

    def before_evaluation(self, envs: AnyEnv) -> None:
        """End running episodes in environments that an evaluation is about to reset.

        Raises:
            ConfigError: when they are learned in at this moment.
        """
        if not share_environments(envs, self.envs):
            return
        if self._loop is not None:
            raise ConfigError(
                "an evaluation in the environments that are learned in would break off their "
                "episodes; make others for it, or evaluate between two calls of train"
            )
        self.collector.end_episodes()

    def savable_state(self) -> StateDict:
        """Return the state of every part, from which a run can go on.

        Raises:
            ConfigError: in the middle of an update, or while the run waits for the compiler.
        """
        if self._loop is not None and not self._loop.can_save:
            raise ConfigError(
                "a run cannot be saved in the middle of an update, or while it waits for the "
                "compiler, as it cannot go on from there; save in another event, such as "
                "on_update_end"
            )
        return self.state_dict()

    def state_dict(self) -> StateDict:
        """Return the state of every part."""
        if self.config.checkpoint_replay:
            storage = state_of(self.storage)
        else:
            storage = {"storage": None, "live_parameters": dict(self.storage.live_parameters())}
        return {
            "run": self.state.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            "callbacks": callback_states(self.callbacks),
            **storage,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Load a state returned by `state_dict`."""
        saved = StateReader(state, "trainer")
        self.state.load_state_dict(saved.tree("run"))
        self.collector.seed = spawn_seed(self.seed, "envs")
        self.algorithm.load_state_dict(saved.tree("algorithm"))
        self.collector.load_state_dict(saved.tree("collector"))
        load_callback_states(self.callbacks, saved.tree("callbacks"))
        if "storage" in state and state["storage"] is None:
            self.storage.reset()
            for name, value in saved.numbers_by_name("live_parameters").items():
                self.storage.update_storage_parameter(name, value)
            self.state.filled_since, self.state.num_demonstrations = self.total_steps, 0
        else:
            check_spec(self.storage, saved)
            self.storage.load_state_dict(saved.tree("storage"))
        self._forget_cut_rollout()

    def _forget_cut_rollout(self) -> None:
        """Forget a rollout whose running episodes are lost; no rollout may span that."""
        if self.storage.rollout_steps is not None and not self.collector.has_episodes:
            self.storage.after_update()  # which keeps what earlier rollouts left
            if not self.state.iteration.has_learned:
                self.state.iteration.end()

    def _demonstrate(self) -> None:
        """Fill the storage once in the life of a run, before its first step."""
        source = self.config.demonstrations
        if source is not None and self.state.num_demonstrations == 0:
            self.state.num_demonstrations = fill_storage(self.storage, source, self.algorithm.actor)
            if self.updates > 0 and self.algorithm.actor.normalizes_observations:
                self.storage.new_observations()  # which the statistics of a resumed run have
