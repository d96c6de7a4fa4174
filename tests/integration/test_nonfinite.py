"""A loss that is not finite ends a run with everything that is needed to look into it."""

import json
import math
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from rl_algos_offpolicy import DQN, DQNConfig, OffPolicyActor, OffPolicyActorConfig
from rl_algos_onpolicy import PPO, TRPO, OnPolicyActor, OnPolicyActorConfig, PPOConfig, TRPOConfig
from rl_command.main import main
from rl_core.algorithm import AnyAlgorithm
from rl_core.batch import RolloutBatch
from rl_core.compile.function import CompileMode
from rl_core.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from rl_core.gradients import FaultyStep
from rl_core.types import StateDict
from rl_envs import make_gym_vec
from rl_storages import PrioritizedConfig, ReplayBuffer, RolloutStorage
from rl_testing.stateful import check_same_state, copy_state
from rl_train import Callback, Trainer, TrainerConfig
from rl_train.checkpoint import load_checkpoint
from rl_train.checkpoint.faulty_steps import load_faulty_step


class Poison(Callback):
    """Makes a hyper-parameter NaN for one gradient step, or one update's policy step."""

    def __init__(self, name: str, update: int, index: int | None) -> None:
        self.name, self.update, self.index = name, update, index
        self.before: StateDict | None = None

    def on_update_start(self, trainer: Trainer) -> None:
        self._set(trainer, self.index is None and trainer.updates == self.update)

    def on_minibatch_start(self, trainer: Trainer, index: int) -> None:
        if self.index is not None:
            self._set(trainer, trainer.updates == self.update and index == self.index)

    def _set(self, trainer: Trainer, is_bad: bool) -> None:
        algorithm = trainer.algorithm
        if is_bad:
            self.before = cast("StateDict", copy_state(_learned(algorithm)))
            algorithm.hyper[self.name].fill_(math.nan)
        else:
            algorithm.hyper[self.name].fill_(algorithm.schedules[self.name].value(0.0))


def _learned(algorithm: AnyAlgorithm) -> StateDict:
    modules = {
        name: tensor
        for name, tensor in algorithm.get_weights().tensors.items()
        if not name.startswith("hyper.")
    }
    return {"modules": modules, "moments": algorithm.gradients.optimizer_states}


def _trainer(
    algorithm_name: str, callback: Callback, config: TrainerConfig, run_dir: Path | None
) -> Trainer:
    torch.manual_seed(0)
    envs = make_gym_vec("CartPole-v1", 2, seed=0)
    spaces = envs.single_observation_space, envs.single_action_space
    algorithm: Any
    storage: Any
    if algorithm_name == "dqn":
        greedy = OffPolicyActorConfig(hidden_sizes=(4,), policy="greedy")
        options = DQNConfig(start_steps=4, update_after=8, update_every=2, minibatch_size=4)
        algorithm = DQN(OffPolicyActor(*spaces, greedy), options)
        storage = ReplayBuffer(64, prioritized=PrioritizedConfig())
    else:
        small = OnPolicyActor(
            *spaces, OnPolicyActorConfig(hidden_sizes=(4,), normalize_observations=True)
        )
        cut = {"num_epochs": 1, "num_minibatches": 4}
        algorithm = (
            PPO(small, PPOConfig(**cut))  # type: ignore[arg-type]  # by name
            if algorithm_name == "ppo"
            else TRPO(small, TRPOConfig(**cut))  # type: ignore[arg-type]
        )
        storage = RolloutStorage(8)
    return Trainer(
        envs, algorithm, storage, config=config, seed=0, callbacks=[callback], run_dir=run_dir
    )


@pytest.mark.parametrize("compile_mode", ["off", "on"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stop_saves_the_batch_and_the_last_good_state(
    compile_mode: CompileMode, tmp_path: Path
) -> None:
    config = TrainerConfig(compile=compile_mode, num_threads=1)
    poison = Poison("value_loss_coef", update=2, index=1)
    trainer = _trainer("ppo", poison, config, tmp_path / "run")
    with pytest.raises(NonFiniteError, match=r"gradient step 10 .*nonfinite.step-.*; the state"):
        trainer.train(160)
    steps = trainer.total_steps
    assert poison.before is not None
    check_same_state(_learned(trainer.algorithm), poison.before)
    path = tmp_path / "run" / "nonfinite" / f"step-{steps}"
    faulty = load_faulty_step(path, RolloutBatch)
    assert faulty.number == 10
    assert faulty.batch.mask.shape == (4,)
    told = load_checkpoint(path).metadata
    assert (told["batch"], told["not_finite"]) == ("RolloutBatch", [])
    trainer.algorithm.hyper["value_loss_coef"].fill_(math.nan)
    assert not trainer.algorithm.compute_loss(faulty.batch, faulty.noise).loss.isfinite()
    with pytest.raises(CheckpointError, match="holds a RolloutBatch; expected a list"):
        load_faulty_step(path, list)

    again = _trainer("ppo", Callback(), config, tmp_path / "run")
    assert again.resume().step == steps
    check_same_state(_learned(again.algorithm), poison.before)
    assert again.train(64).total_steps >= 64


@pytest.mark.parametrize(
    ("algorithm", "name", "index"),
    [("ppo", "value_loss_coef", 1), ("trpo", "entropy_coef", None), ("dqn", "gamma", 0)],
)
def test_a_skip_goes_on_and_is_counted(
    algorithm: str, name: str, index: int | None, tmp_path: Path
) -> None:
    config = TrainerConfig(compile="off", num_threads=1, on_nonfinite="skip", log_every=1000)
    poison = Poison(name, update=2, index=index)
    trainer = _trainer(algorithm, poison, config, tmp_path / "run")
    trainer.train(80)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (line,) = (json.loads(line) for line in lines)
    assert line["gradients/skipped_steps"] == 1.0
    assert not (tmp_path / "run" / "nonfinite").exists()


def test_a_skip_hides_no_other_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainerConfig(compile="off", num_threads=1, on_nonfinite="skip", log_every=1000)
    trainer = _trainer("dqn", Poison("gamma", update=2, index=0), config, None)

    def refuse_later(*_: object) -> None:
        if trainer.updates > 2:
            raise DataError("an error that no priority can have")

    monkeypatch.setattr(trainer.storage, "after_gradients", refuse_later)
    with pytest.raises(DataError, match="no priority"):
        trainer.train(80)


def test_replayed_batches_and_policy_steps_are_saved_too(tmp_path: Path) -> None:
    config = TrainerConfig(compile="off", num_threads=1)
    for algorithm, name, index in (("dqn", "gamma", 0), ("trpo", "entropy_coef", None)):
        run = tmp_path / algorithm
        trainer = _trainer(algorithm, Poison(name, update=2, index=index), config, run)
        with pytest.raises(NonFiniteError, match="its batch is in"):
            trainer.train(80)
        (path,) = (run / "nonfinite").iterdir()
        faulty: FaultyStep[Any] = load_faulty_step(path, trainer.algorithm.batch_type)
        check = trainer.algorithm.compute_loss(faulty.batch, faulty.noise).loss
        assert check.isfinite() == (algorithm == "trpo")  # whose loss is the value function's


def test_without_a_run_directory_the_error_says_what_it_would_be_good_for() -> None:
    config = TrainerConfig(compile="off", num_threads=1)
    trainer = _trainer("ppo", Poison("value_loss_coef", 0, 0), config, None)
    with pytest.raises(NonFiniteError, match="with a run_dir, the batch would have been saved"):
        trainer.train(32)


def test_the_option_is_one_of_two() -> None:
    with pytest.raises(ConfigError, match=r"on_nonfinite.*'stop'"):
        TrainerConfig(on_nonfinite="stopp")  # type: ignore[arg-type]  # what is refused


def test_the_command_line_ends_with_one_line_or_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "vpg", "CartPole-v1", "--num-envs", "2", "--storage.num-steps", "8"]
    words += ["--total-steps", "64", "--seed", "1", "--algorithm.policy-learning-rate", "1e38"]
    words += ["--algorithm.value-learning-rate", "1e38"]
    assert main([*words, "--run-dir", str(tmp_path / "stop")]) == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert "nonfinite" in told[0]
    skips = [*words, "--run-dir", str(tmp_path / "skip"), "--trainer.on-nonfinite", "skip"]
    assert main(skips) == 0
