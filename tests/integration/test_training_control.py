"""Who may end what: callbacks at every turn, `Trainer.stop`; and what is kept of the best."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rl_algos_offpolicy import SAC, OffPolicyActor, OffPolicyActorConfig, SACConfig
from rl_algos_onpolicy import PPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig
from rl_command.main import main
from rl_core.errors import ConfigError
from rl_core.logger import Logger
from rl_core.stateful import StateReader
from rl_envs import make_gym_vec
from rl_storages import RolloutStorage
from rl_testing.replay import ReferenceReplayStorage
from rl_train import Callback, EvaluationResult, Trainer, TrainerConfig
from rl_train.checkpoint import latest_checkpoint
from rl_train.evaluation import summarize
from rl_train.trainer import evaluator


class Diary(Callback):
    """Writes down every turn, and answers True at some."""

    def __init__(self, *ends: str) -> None:
        self.ends = ends
        self.turns: list[str] = []

    def _note(self, turn: str) -> bool:
        self.turns.append(turn)
        return turn in self.ends

    def on_training_start(self, trainer: Trainer, target: int, unit: str) -> bool:
        return self._note("training")

    def on_update_start(self, trainer: Trainer) -> bool:
        return self._note("update")

    def on_epoch_start(self, trainer: Trainer, epoch: int) -> bool:
        return self._note(f"epoch {epoch}")

    def on_minibatch_start(self, trainer: Trainer, index: int) -> bool:
        return self._note(f"batch {index}")

    def on_minibatch_end(self, trainer: Trainer, index: int) -> bool:
        return self._note(f"batch {index} end")

    def on_epoch_end(self, trainer: Trainer, epoch: int) -> bool:
        return self._note(f"epoch {epoch} end")


def _trainer(
    *callbacks: Callback,
    run_dir: Path | None = None,
    loggers: tuple[Logger | str, ...] = (),
    test_every: int | None = None,
    **options: bool,
) -> Trainer:
    torch.manual_seed(0)
    envs = make_gym_vec("CartPole-v1", 2, seed=0)
    config = OnPolicyActorConfig(hidden_sizes=(4,))
    actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space, config)
    algorithm = PPO(actor, PPOConfig(num_epochs=2, num_minibatches=2))
    tests = {"test_every": test_every, "num_test_episodes": 2}
    return Trainer(
        envs,
        algorithm,
        RolloutStorage(4),
        config=TrainerConfig(compile="off", num_threads=1, **tests, **options),  # type: ignore[arg-type]  # of several types
        seed=0,
        callbacks=callbacks,
        run_dir=run_dir,
        loggers=loggers,
        test_envs=make_gym_vec("CartPole-v1", 2, seed=1),
    )


BATCHES = ["batch 0", "batch 0 end", "batch 1", "batch 1 end"]


@pytest.mark.parametrize(
    ("ends", "turns", "steps"),
    [
        ((), ["update", "epoch 0", *BATCHES, "epoch 0 end", "epoch 1", *BATCHES, "epoch 1 end"], 4),
        (("training",), [], 0),
        (("update",), ["update"], 0),
        (("epoch 0",), ["update", "epoch 0"], 0),
        (("epoch 0 end",), ["update", "epoch 0", *BATCHES, "epoch 0 end"], 2),
        (
            ("batch 0",),
            ["update", "epoch 0", "batch 0", "epoch 0 end", "epoch 1", "batch 0", "epoch 1 end"],
            0,
        ),
        (
            ("batch 0 end", "epoch 0 end"),
            ["update", "epoch 0", "batch 0", "batch 0 end", "epoch 0 end"],
            1,
        ),
    ],
)
def test_a_true_answer_ends_the_loop_it_is_given_in(
    ends: tuple[str, ...], turns: list[str], steps: int
) -> None:
    diary = Diary(*ends)
    trainer = _trainer(diary)
    trainer.train(8)
    assert diary.turns == ["training", *turns]
    assert trainer.algorithm.gradients.count == steps


def test_nobody_listens_where_nothing_is_overridden() -> None:
    class Quiet(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            callbacks = trainer.algorithm.callbacks
            assert not any((callbacks.epoch_start, callbacks.epoch_end))
            assert not any((callbacks.minibatch_start, callbacks.minibatch_end))

    _trainer(Quiet()).train(8)


def test_stop_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    class Stopping(Callback):
        def on_minibatch_start(self, trainer: Trainer, index: int) -> None:
            trainer.stop()

    trainer = _trainer(Stopping(), run_dir=tmp_path / "run")
    assert trainer.train(800).total_steps == 8
    assert latest_checkpoint(tmp_path / "run" / "checkpoints") is not None
    assert (tmp_path / "run" / "summary.json").exists()


def test_evaluations_come_every_so_many_updates_with_their_episodes() -> None:
    seen: list[tuple[int, int]] = []

    class Counting(Callback):
        def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> None:
            seen.append((trainer.updates, result.num_episodes))

    result = _trainer(Counting(), test_every=2).train(total_updates=5)
    assert seen == [(2, 2), (4, 2)]
    assert result.evaluation is not None
    assert result.evaluation.num_episodes == 2


def test_updates_that_are_left_out_are_not_evaluated() -> None:
    seen: list[tuple[int, int]] = []

    ended: list[int] = []

    class Skipping(Callback):
        turns = 0

        def on_update_start(self, trainer: Trainer) -> bool:
            self.turns += 1
            return self.turns in (1, 3, 4)

        def on_update_end(self, trainer: Trainer) -> None:
            ended.append(self.turns)

        def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> None:
            seen.append((self.turns, trainer.updates))

    _trainer(Skipping(), test_every=1).train(total_updates=3)
    assert seen == [(2, 1), (5, 2), (6, 3)]
    assert ended == [2, 5, 6]  # updates that were skipped have no end


def test_the_weights_of_the_best_evaluation_may_be_left_out(tmp_path: Path) -> None:
    _trainer(run_dir=tmp_path / "run", test_every=1, keep_best=False).train(total_updates=1)
    assert not (tmp_path / "run" / "best").exists()


def test_a_run_that_reached_its_target_was_not_stopped() -> None:
    class Stopping(Callback):
        def on_update_end(self, trainer: Trainer) -> None:
            if trainer.updates == 1:
                trainer.stop()

    for total, stopped in ((1, False), (2, True)):
        result = _trainer(Stopping()).train(total_updates=total)
        assert (result.total_updates, result.stopped) == (1, stopped)


def test_the_weights_of_the_best_evaluation_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = itertools.chain([3.0, 7.0, 7.0], itertools.repeat(5.0))
    weights: list[Tensor] = []

    class Keeping(Callback):
        def on_evaluation(self, trainer: Trainer, result: EvaluationResult) -> None:
            weights.append(trainer.algorithm.actor.state_dict()["value_head.out.bias"].clone())

    trainer = _trainer(Keeping(), run_dir=tmp_path / "run", test_every=1)
    monkeypatch.setattr(
        evaluator.Evaluator, "evaluate", lambda *_: summarize([next(scores)], [1], [])
    )
    trainer.train(32)
    kept = latest_checkpoint(tmp_path / "run" / "best")
    assert kept is not None
    assert (kept.step, kept.metadata["episode_return"]) == (16, 7.0)
    modules = StateReader(kept.state, "best").reader("algorithm").tensors("modules")
    assert torch.equal(modules["actor.value_head.out.bias"], weights[1])
    assert len(list((tmp_path / "run" / "best").iterdir())) == 1


def test_the_command_line_evaluates_the_best_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    words = ["train", "ppo", "CartPole-v1", "--num-envs", "2", "--storage.num-steps", "8"]
    words += ["--algorithm.minibatch-size", "8", "--total-steps", "32", "--run-dir", run]
    assert main([*words, "--trainer.test-every", "1"]) == 0
    assert main(["eval", run, "--best", "--json", "--episodes", "2"]) == 0
    assert "/best/" in capsys.readouterr().out.splitlines()[-1]
    unevaluated = str(tmp_path / "unevaluated")
    assert main([*words[:-1], unevaluated]) == 0
    assert main(["eval", unevaluated, "--best"]) == 2
    assert "test-every" in capsys.readouterr().err


def test_the_command_line_says_that_a_run_learned_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "dqn", "CartPole-v1", "--total-steps", "40", "--storage.size", "100"]
    assert main([*words, "--run-dir", str(tmp_path / "run")]) == 0
    note = "nothing: the run ended before its first update (algorithm.update_after = 1,000)"
    assert f"learned     {note}" in capsys.readouterr().out
    learns = ["--algorithm.update-after", "20", "--run-dir", str(tmp_path / "other")]
    assert main([*words, *learns]) == 0
    assert "learned" not in capsys.readouterr().out


def test_histograms_of_parameters_reach_loggers_when_asked_for(tmp_path: Path) -> None:
    class Shelf(Logger):
        def __init__(self) -> None:
            self.names: set[str] = set()

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            """Take nothing."""

        def histogram(self, step: int, name: str, values: Tensor) -> None:
            self.names.add(name)

        def close(self) -> None:
            """Keep everything."""

    quiet, full = Shelf(), Shelf()
    _trainer(loggers=(quiet,)).train(8)
    assert not quiet.names
    trainer = _trainer(loggers=(full, "tensorboard"), run_dir=tmp_path / "run", log_histograms=True)
    trainer.train(8)
    assert "parameters/actor.value_head.out.weight" in full.names
    assert list((tmp_path / "run").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("sizes", "memory", "message"),
    [
        ({"minibatch_size": 65}, {}, "larger than the 64 samples"),
        ({"num_minibatches": 65}, {}, "more than the 64 samples"),
        (
            {"minibatch_size": 8},
            {"recurrent_net": "gru"},
            "has no room for one sequence of 16 steps",
        ),
        ({"num_minibatches": 64}, {}, "only 1 in the smallest"),
        ({"num_minibatches": 33}, {}, "only 1 in the smallest"),
    ],
)
def test_minibatches_that_no_rollout_has_or_can_learn_from_are_refused_before_the_run(
    sizes: dict[str, int | None], memory: dict[str, str], message: str
) -> None:
    envs = make_gym_vec("CartPole-v1", num_envs=4, seed=0)
    actor = OnPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OnPolicyActorConfig(hidden_sizes=(8,), **memory),  # type: ignore[arg-type]  # a valid name
    )
    with pytest.raises(ConfigError, match=message):
        Trainer(envs, PPO(actor, PPOConfig(**sizes)), RolloutStorage(num_steps=16))  # type: ignore[arg-type]  # valid sizes
    envs.close()


def test_smoothness_over_time_and_several_steps_are_refused_at_set_up() -> None:
    envs = make_gym_vec("Pendulum-v1", 1, seed=0)
    actor = OffPolicyActor(
        envs.single_observation_space,
        envs.single_action_space,
        OffPolicyActorConfig(hidden_sizes=(8,)),
    )
    algorithm = SAC(actor, SACConfig(temporal_smoothness=0.5))
    with pytest.raises(ConfigError, match="up to 5 steps"):
        Trainer(envs, algorithm, ReferenceReplayStorage(size=100, n_step=5))
    envs.close()
