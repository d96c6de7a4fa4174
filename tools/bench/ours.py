"""The toolbox's side of the benchmarks."""

from bench.plan import NUM_EPISODES, NUM_TEST_ENVS, Outcome, Run
from bench.progress import Progress
from bench.span import Span
from bench.workloads import Workload
from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_core import Callback, ComponentSpec, Recipe, Trainer, TrainerConfig, evaluate_policy
from rl_core.build import build, build_test_envs, build_trainer, compose
from rl_envs import make_vec
from rl_storages import RolloutStorage

_ENDLESS = 10**9


def measure(workload: Workload, span: Span, *, is_compiled: bool, threads: int) -> None:
    """Train until a span is over, with the parts that a user would put together.

    Args:
        workload: what to train.
        span: marked after every update.
        is_compiled: compile the gradient step.
        threads: of PyTorch.
    """
    settings = workload.settings
    envs = make_vec(workload.env, num_envs=settings.num_envs, seed=0)
    actor = OnPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OnPolicyActorConfig(hidden_sizes=settings.hidden_sizes, activation="tanh"),
    )
    config = PPOConfig(
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.gae_lambda,
        num_epochs=settings.num_epochs,
        mini_batch_size=settings.mini_batch_size,
        clip_range=settings.clip_range,
        value_loss_coef=2.0 * settings.value_coef,  # its loss is half the squared error
        entropy_coef=settings.entropy_coef,
        max_grad_norm=settings.max_grad_norm,
    )
    trainer = Trainer(
        envs,
        PPO(actor, config),
        RolloutStorage(num_steps=settings.num_steps),
        config=TrainerConfig(
            compile="on" if is_compiled else "off",
            num_threads=threads,
            log_every=settings.num_steps * settings.num_envs,  # after every update, as the peers do
        ),
        seed=0,
        callbacks=[_Marks(span)],
    )
    try:
        trainer.train(total_steps=_ENDLESS)
    finally:
        envs.close()


def learn(run: Run) -> Outcome:
    """Train as the command line would, and evaluate what was learned."""
    recipe = compose(run.algorithm, run.env, run.sections(), seed=run.seed, device="cpu")
    parts = build(recipe)
    try:
        trainer = build_trainer(parts, callbacks=[_Progress(Progress(run.steps))])
        training = trainer.train(total_steps=run.steps)
        test_envs = build_test_envs(_for_evaluation(recipe))
        try:
            found = evaluate_policy(parts.algorithm, test_envs, NUM_EPISODES, seed=run.seed)
        finally:
            test_envs.close()
    finally:
        parts.envs.close()
    return Outcome(
        returns=found.returns,
        total_steps=training.total_steps,
        steps_per_second=training.steps_per_second,
    )


def _for_evaluation(recipe: Recipe) -> Recipe:
    env = recipe.env
    if "num_envs" not in env:
        return recipe
    kwargs = {**env.kwargs, "num_envs": NUM_TEST_ENVS}
    return recipe.replace(env=ComponentSpec("env", env.name, kwargs))


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
