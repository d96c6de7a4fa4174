"""Everything that a user can get wrong ends with status 2 and one line that says how to mend it."""

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from filelock import FileLock
from gymnasium import spaces

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]


class TupleActions(gymnasium.Env[object, object]):
    """An environment whose actions no off-policy actor supports."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (2,), np.float32)))


@pytest.fixture
def registered() -> Iterator[None]:
    gymnasium.register("TupleActions-v0", entry_point=lambda **kwargs: TupleActions())
    gymnasium.register("NotInstalled-v0", entry_point="simulator_that_is_missing:Env")
    yield
    del gymnasium.registry["TupleActions-v0"]
    del gymnasium.registry["NotInstalled-v0"]


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "copied"))


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("trian ppo CartPole-v1", ["unknown command 'trian'", "did you mean 'train'"]),
        ("--versio", ["unknown option '--versio'", "did you mean '--version'"]),
        ("zzzzzz", ["unknown command 'zzzzzz'", "rl --help"]),
        ("enjoy runs/a", ["unknown command 'enjoy'; did you mean 'eval'?"]),
        ("train", ["ALGO is missing", "rl train ppo CartPole-v1"]),
        ("train ppo", ["ENV is missing"]),
        ("train ppo CartPole-v1 --total-steps", ["argument --total-steps: expected one argument"]),
        ("train ppo CartPole-v1 --total-steps many", ["--total-steps", "'many'", "a whole number"]),
        (
            "train ppo CartPole-v1 --total-steps 9 --total-updates 2",
            ["--total-steps and --total-updates contradict each other; give just one"],
        ),
        (
            "train ppo CartPole-v1 --total-steps 0",
            ["--total-steps must be a whole number of at least 1, got 0"],
        ),
        (
            "train ppo CartPole-v1 --total-steps -7",
            ["--total-steps must be a whole number of at least 1, got -7"],
        ),
        ("train ppo CartPole-v1 --config none.toml", ["none.toml", "missing"]),
        ("train ppo CartPole-v1 --seed 1 --seed 2", ["--seed is given twice"]),
        ("train ppo CartPole-v1 --import no_such_module", ["--import no_such_module: ModuleNotF"]),
        ("train ppo CartPole-v1 --progress loud", ["--progress: got 'loud'", "'log'"]),
        ("eval nowhere --import no_such_module", ["--import no_such_module"]),
        ("resume nowhere --import no_such_module", ["--import no_such_module"]),
        ("plot", ["RUN_DIRS... is missing", "rl plot runs"]),
        ("plot nowhere", ["nowhere is not a run"]),
        ("plot nowhere -o curves.bmp", ["-o: got 'curves.bmp'", ".png, .svg, .pdf"]),
        ("plot nowhere --metrics x", ["did you mean '--metric'"]),
        ("plot nowhere --output a.png", ["unknown option --output (did you mean '-o'?)"]),
        ("train ppo CartPole-v1 --config /dev/null", ["/dev/null", "not a regular file"]),
        ("resume", ["RUN_DIR is missing"]),
        ("resume nowhere", ["there is no run directory nowhere"]),
        ("eval nowhere", ["there is no run directory nowhere"]),
        ("eval . --episodes 0", ["--episodes must be a whole number of at least 1, got 0"]),
        ("eval . --seed -1", ["--seed must be a whole number of at least 0, got -1"]),
        ("eval .", ["is not a run", "recipe.toml"]),
        ("list --jason", ["unknown option --jason", "--json"]),
    ],
)
def test_words_that_make_no_command(refused: Refused, line: str, parts: list[str]) -> None:
    message = refused(*line.split())
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("ppo CartPole-v1 extra", ["'extra' is one argument too many"]),
        ("ppo CartPole-v1 --seed 1 --seeds 1..3", ["--seed has no effect with --seeds; leave one"]),
        ("ppo CartPole-v1 --jobs 2", ["--jobs has no effect without --seeds; set"]),
        ("ppo CartPole-v1 --seeds 1-3", ["--seeds: got '1-3'", "1..5 or 1,2,7"]),
        ("ppo CartPole-v1 --seeds 1,2,1", ["--seeds: got '1,2,1', with a seed twice"]),
        ("ppo CartPole-v1 --seeds 3..1", ["--seeds: got '3..1', with no seed"]),
        (
            "ppo CartPole-v1 --policy MlpPolicy",
            ["--policy (leave it out: the networks follow from"],
        ),
        ("ppo CartPole-v1 --imports m", ["did you mean '--import'"]),
        ("ppo CartPole-v1 --storage rollout", ["did you mean '--storage.name'"]),
        ("dqn CartPole-v1 --storage.prioritized.alhpa 1", ["'--storage.prioritized.alpha'"]),
        ("ppo FrozenLake-v1 --env.map-name 8x8", ["--env.env-kwargs '{map_name = 1}'"]),
        ("ppo CartPole-v1 --env.limit 3", ["given as --env.env-kwargs '{limit = 1}'"]),
        ("ppo CartPole-v1 --verbose 1", ["did you mean '--progress'"]),
        ("ppo CartPole-v1 --total-timesteps 9", ["did you mean '--total-steps'"]),
        ("pp CartPole-v1", ["no algorithm 'pp'", "did you mean 'ppo'"]),
        ("PPO CartPole-v1", ["no algorithm 'PPO'", "did you mean 'ppo'"]),
        ("ppo cartpole-v1", ["'cartpole-v1'", "'CartPole-v1'"]),
        (
            "ppo CartPole-v1 --num_steps 8",
            ["unknown option --num-steps (did you mean '--storage.num-steps'?)"],
        ),
        ("ppo CartPole-v1 --lr 1", ["did you mean '--algorithm.learning-rate'"]),
        ("sac Pendulum-v1 --lr 1", ["did you mean '--algorithm.policy-learning-rate'"]),
        ("ppo CartPole-v1 --hidden-sizes 8", ["did you mean '--actor.hidden-sizes'"]),
        ("ppo CartPole-v1 --n-steps 8", ["did you mean '--storage.num-steps'"]),
        ("dqn CartPole-v1 --storage.num-steps 8", ["(an option of other parts: rollout, task-rep"]),
        ("dqn CartPole-v1 --num-epochs 8", ["(an option of other parts: maml-ppo, maml-vpg, ppo"]),
        ("dqn CartPole-v1 --buffer-size 8", ["did you mean '--storage.size'"]),
        ("--algo ppo --env CartPole-v1", ["ALGO and ENV take no flag, as in rl train ppo"]),
        ("ppo CartPole-v1 --env-id Acrobot-v1", ["ALGO and ENV take no flag"]),
        ("ppo CartPole-v1 --env-kwargs {}", ["did you mean '--env.env-kwargs'"]),
        ("ppo CartPole-v1 --norm-obs", ["did you mean '--actor.normalize-observations'"]),
        ("ppo CartPole-v1 -n 1000", ["did you mean '--total-steps'"]),
        ("ppo CartPole-v1 --tensorboard", ["did you mean '--trainer.loggers'"]),
        ("ppo CartPole-v1 --log-interval 9", ["did you mean '--trainer.log-every'"]),
        ("ppo CartPole-v1 --no-cuda", ["did you mean '--device'"]),
        ("ppo CartPole-v1 --quiet", ["did you mean '--progress'"]),
        ("reinforce CartPole-v1", ["no algorithm 'reinforce'; did you mean 'vpg'"]),
        ("ppo CartPole-v1 --track", ["did you mean '--trainer.loggers'"]),
        ("ppo CartPole-v1 --save-freq 9", ["did you mean '--trainer.checkpoint-every'"]),
        ("recurrent-ppo CartPole-v1", ["take ppo with actor.recurrent_net = 'lstm'"]),
        ("QRDQN CartPole-v1", ["no algorithm 'QRDQN'; take dqn with actor.distribution = 'quant"]),
        ("xyzzy CartPole-v1", ["there is no algorithm 'xyzzy'; known: a2c, "]),
        ("ppo CartPoel-v1", ["'CartPoel-v1'", "did you mean 'CartPole-v1'"]),
        ("ppo CartPole-v7", ["'CartPole-v7'", "'CartPole-v1'"]),
        ("ppo os:path", ["'os:path': write --import os, and path as ENV if that is an id"]),
        ("ppo A-v0 --import here/mine.py", ["--import here/mine.py: give a module's name, as in"]),
        ("ppo A-v0 --import ./here/mine.py", ["--import here.mine"]),
        ("ppo CartPole-v1 --algorithm.learning-rat 1", ["did you mean '--algorithm.learning-rate"]),
        ("ppo CartPole-v1 --learning-rate 1", ["did you mean '--algorithm.learning-rate'"]),
        ("ppo CartPole-v1 --actor.name of-policy", ["'of-policy'", "did you mean 'off-policy'"]),
        ("ppo CartPole-v1 --actor.activation tahn", ["--actor.activation", "mean 'tanh'"]),
        (
            "CartPole-v1 ppo",
            ["'CartPole-v1' stands where the algorithm is expected", "exchange the two"],
        ),
        (
            "ppo CartPole-v1 --algorithm.gamma 2",
            ["--algorithm.gamma must be a number in [0, 1], got 2"],
        ),
        ("ppo CartPole-v1 --algorithm.learning-rate -inf", ["--algorithm.learning-rate", "-inf"]),
        (
            "ppo CartPole-v1 --algorithm.optimizer.eps -1",
            ["error: --algorithm.optimizer.eps must be a finite number above 0, got -1"],
        ),
        (
            "ppo CartPole-v1 --algorithm.max-grad-norm -1",
            ["error: --algorithm.max-grad-norm must be a finite number above 0, or none, got -1"],
        ),
        (
            "ppo CartPole-v1 --algorithm.optimizer.momentum 0.9",
            ["error: --algorithm.optimizer.momentum has no effect with name='adam'"],
        ),
        (
            "ppo CartPole-v1 --trainer.log-every 0",
            ["error: --trainer.log-every must be a whole number of at least 1"],
        ),
        (
            "ppo CartPole-v1 --env.timeout-s 5",
            ["error: --env.timeout-s has no effect with --env.vectorization='auto'"],
        ),
        (
            "ppo CartPole-v1 --env.check maybe",
            ["--env.check: got 'maybe'", "; write true or false"],
        ),
        (
            "--env.check maybe ppo CartPole-v1",
            ["--env.check: got 'maybe'", "; write true or false"],
        ),
        (
            "ppo CartPole-v1 --trainer.scale-rewards 2",
            ["--trainer.scale-rewards: got 2", "; write true or false"],
        ),
        (
            "ppo CartPole-v1 --actor.hidden-sizes 64 abc",
            ["--actor.hidden-sizes[1]: got 'abc'", "expected a whole number"],
        ),
        ("ppo CartPole-v1 --algorithm.gamma linear(1", ["--algorithm.gamma", "linear(1"]),
        (
            "ppo CartPole-v1 --algorithm.num-minibatches 4 --algorithm.minibatch-size 4",
            ["num-minibatches has no effect with minibatch_size; leave one of them out"],
        ),
        (
            "ppo CartPole-v1 --algorithm.add-ons reward-predicter",
            ["there is no add_on 'reward-predicter'; did you mean 'reward-predictor'?"],
        ),
        (
            "ppo CartPole-v1 --algorithm.add-ons 3",
            ["error: there is no add_on '3'"],
        ),
        ("ppo CartPole-v1 --trainer.loggers csvv text", ["no logger 'csvv'; did you mean 'csv'"]),
        (
            "ppo CartPole-v1 --trainer.loggers",
            ["--trainer.loggers: expected at least one argument"],
        ),
        ("ppo CartPole-v1 --trainer.loggers csv --tensorboard", ["unknown option --tensorboard"]),
        (
            "ppo CartPole-v1 --trainer.loggers {name='console',every=1}",
            ["logger.every: unknown option; did you mean 'every_seconds'?"],
        ),
        (
            "ppo CartPole-v1 --trainer.callbacks early",
            ["there is no callback 'early'; none is installed"],
        ),
        (
            "ppo CartPole-v1 --logger csv",
            ["did you mean '--trainer.loggers'"],
        ),
        (
            "ppo CartPole-v1 --actor.body Tanh",
            ["""; write a table as {key = "value"} or {"key": "value"}"""],
        ),
        ("ppo CartPole-v1 --actor.body [{func=Tanh}]", ["it is not valid TOML (Invalid value)"]),
        (
            "ppo CartPole-v1 --num-envs 0",
            ["error: --num-envs must be a whole number of at least 1, got 0"],
        ),
        (
            "ppo CartPole-v1 --num-envs 2 --env.num-envs 3",
            ["--env.num-envs repeats --num-envs; leave one out"],
        ),
        (
            "ppo CartPole-v1 --seed -1",
            ["error: --seed must be a whole number of at least 0, got -1"],
        ),
        ("ppo CartPole-v1 --device gpu", ["device 'gpu'", "auto, cpu, cuda"]),
        ("ppo CartPole-v1 --device mps", ["device 'mps'", "auto, cpu, cuda"]),
        ("ppo CartPole-v1 --trainer.compile maybe", ["--trainer.compile", "'auto'"]),
        ("sac TupleActions-v0", ["action space HybridSpace", "expected Discrete, or a Box"]),
        ("ppo NotInstalled-v0", ["'simulator_that_is_missing'; install the package that has it"]),
    ],
)
def test_names_and_options_that_do_not_fit(
    refused: Refused, needs_ppo: None, registered: None, line: str, parts: list[str]
) -> None:
    message = refused("train", *line.split(), "--total-steps=64", "--run-dir=run")
    for part in parts:
        assert part in f"error: {message}"
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("train", "ppo", "CartPole-v1", "--config", ""),
        ("train", "ppo", "CartPole-v1", "--run-dir="),
        ("train", "ppo", ""),
        ("resume", ""),
        ("eval", ""),
    ],
)
def test_empty_words_are_refused(refused: Refused, words: tuple[str, ...]) -> None:
    assert "is empty; expected" in refused(*words)


def test_directories_inside_a_run_are_answered_with_the_run(
    refused: Refused, trained_run: Path
) -> None:
    (checkpoint,) = (trained_run / "checkpoints").iterdir()
    for command in ("eval", "resume"):
        for inside in (checkpoint, checkpoint.parent):
            assert f"is inside the run {trained_run}; give" in refused(command, inside)


def test_sizes_that_contradict_each_other(refused: Refused, tiny: tuple[str, ...]) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--run-dir=run")
    message = refused(*words, "--algorithm.minibatch-size=1000")
    assert "minibatch_size=1000 is larger than the 64 samples of the rollout" in message
    message = refused(
        *words,
        "--actor.recurrent-net=gru",
        "--algorithm.num-minibatches=5",
    )
    assert "num_minibatches=5 is more than the 4 sequences of 16 steps" in message
    assert not Path("run").exists(), "the directory is free for the next attempt"


def test_a_gpu_that_is_not_there(
    refused: Refused, needs_ppo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refused("train", "ppo", "CartPole-v1", "--device", "cuda")
    assert message.startswith(
        "--device 'cuda' was asked for, but torch sees no CUDA device; use 'cpu'"
    )
    assert not Path("runs").exists()


def test_run_directories_that_cannot_be_used(refused: Refused, needs_ppo: None) -> None:
    words = ("train", "ppo", "CartPole-v1", "--total-steps=64", "--run-dir")
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    assert "exists and is not empty" in refused(*words, "full")
    assert "is a file" in refused(*words, "full/notes.txt")
    assert "not writable" in refused(*words, "full/notes.txt/below")
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]


def test_a_run_directory_without_permission(
    refused: Refused, needs_ppo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_command.run_directory.os.access", lambda path, mode: False)
    words = ("train", "ppo", "CartPole-v1", "--total-steps=64", "--run-dir=new/run")
    assert "run directory new/run is not writable" in refused(*words)


def test_a_finished_run_is_pointed_out(refused: Refused, trained_run: Path) -> None:
    assert f"rl resume {trained_run}" in refused(
        "train", "ppo", "CartPole-v1", "--run-dir", trained_run
    )
    message = refused("resume", trained_run)
    assert "steps already; to continue" in message
    assert "--total-steps" in message
    assert "steps already; to continue" in refused("resume", trained_run, "--total-steps", 10)
    assert "at least 1" in refused("resume", trained_run, "--total-steps", 0)


def test_a_shorter_length_than_an_unfinished_run_has_is_no_reason_to_lengthen_it(
    refused: Refused, trained_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("total_steps = 256", "total_steps = 999"))
    message = refused("resume", run, "--total-steps", 10)
    assert message.strip().endswith(f"of 10 steps already; to continue: rl resume {run}")


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_run_that_ended_in_its_last_evaluation_is_told_what_is_missing(
    refused: Refused, trained_run: Path, tmp_path: Path, is_killed: bool
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    summary = run / "summary.json"
    stopped = {**json.loads(summary.read_text()), "final_return_mean": None}
    summary.write_text(json.dumps(stopped))
    if is_killed:
        summary.unlink()
    message = refused("resume", run)
    assert f"already; only the final evaluation is missing: rl eval {run}; to continue" in message


@pytest.mark.parametrize("error", [OSError("network away"), BrokenPipeError(32, "Broken pipe")])
def test_what_failed_in_ones_own_code_is_told_with_what_was_saved(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(words: object) -> int:
        error.add_note("rl-train: the state before it is in runs/a/checkpoints/step-8")
        exec(compile("raise error", "/home/me/logger.py", "exec"), {"error": error})
        return 0

    monkeypatch.setattr("rl_command.listing.list_plugins", fail)
    message = refused("list")
    reason = error.strerror or str(error)
    saved = "the state before it is in runs/a/checkpoints/step-8"
    assert message == f"{reason} (/home/me/logger.py, line 1); {saved}"


def test_a_directory_of_seeds_is_not_resumed_as_one_run(
    refused: Refused, trained_group: Path
) -> None:
    message = refused("resume", trained_group)
    assert "holds a run for each seed" in message
    assert f"rl resume {trained_group / 'seed-3'}" in message


def test_runs_without_checkpoints(refused: Refused, run_copy: Path) -> None:
    shutil.rmtree(run_copy / "checkpoints")
    for command in ("eval", "resume"):
        assert "it ended before its first checkpoint, or has none" in refused(command, run_copy)
    train = ("train", "ppo", "CartPole-v1", "--total-steps=8", "--run-dir", run_copy)
    with FileLock(run_copy / ".lock"):
        for words in (("eval", run_copy), ("resume", run_copy), train):
            assert "is being trained, and has no checkpoint yet; wait" in refused(*words)
    (run_copy / "best" / "step-64").mkdir(parents=True)
    (run_copy / "best" / "step-64" / "manifest.json").write_text("{}")
    for words in (("eval", run_copy), ("resume", run_copy), train):
        assert f"but its best weights: rl eval {run_copy} --best" in refused(*words)


@pytest.mark.parametrize("folder", ["checkpoints", "best"])
def test_what_is_inside_a_run_is_no_run(
    refused: Refused, run_copy: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint,) = (run_copy / "checkpoints").iterdir()
    inside = shutil.copytree(checkpoint, run_copy / folder / "step-7")
    for path in (inside, inside.parent):
        assert f"is inside the run {run_copy.resolve()}" in refused("resume", path)
    monkeypatch.chdir(inside)
    assert f"is inside the run {run_copy.resolve()}" in refused("resume", ".")


def test_the_best_weights_need_no_other_checkpoints(rl: Run, run_copy: Path) -> None:
    (run_copy / "checkpoints").rename(run_copy / "best")
    status, out, err = rl("eval", run_copy, "--best", "--episodes=2")
    assert status == 0, err
    assert "2 episodes" in out


def test_runs_whose_checkpoints_are_all_damaged(refused: Refused, run_copy: Path) -> None:
    for path in run_copy.glob("checkpoints/*/state.json"):
        path.write_text("{}")
    for command in ("eval", "resume"):
        words = (command, run_copy, *(["--total-steps=512"] if command == "resume" else []))
        assert "none of the 1 checkpoints" in refused(*words)


def test_runs_with_parts_from_python(refused: Refused, run_copy: Path) -> None:
    recipe = run_copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('name = "on-policy"', 'name = "custom"'))
    for command in ("eval", "resume"):
        message = refused(command, run_copy)
        assert "Python objects as its actor" in message
    assert "its actor is 'custom'" in refused("train", "--config", recipe, "--run-dir=new")


def test_a_run_with_a_storage_from_python_can_still_be_evaluated(
    refused: Refused, rl: Run, run_copy: Path
) -> None:
    recipe = run_copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('name = "rollout"', 'name = "custom"'))
    assert "Python objects as its storage" in refused("resume", run_copy)
    status, out, _ = rl("eval", run_copy, "--episodes=2")
    assert status == 0
    assert "over 2 episodes" in out


def test_a_directory_that_holds_runs_names_one(refused: Refused, run_copy: Path) -> None:
    message = refused("eval", run_copy.parent)
    assert f"give the directory that rl train wrote, such as {run_copy}" in message


def test_a_run_whose_recipe_was_edited(refused: Refused, run_copy: Path) -> None:
    recipe = run_copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("gamma = 0.99", "gamma = 0.1"))
    message = refused("resume", run_copy, "--total-steps=512")
    assert "recipe.toml was edited: its algorithm.gamma is not that of step-256" in message
    assert "begin another run with rl train --config" in message


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_run_whose_recipe_is_lost_or_damaged(
    refused: Refused, run_copy: Path, is_missing: bool
) -> None:
    recipe = run_copy / "recipe.toml"
    recipe.write_bytes(bytes(100))
    if is_missing:
        recipe.unlink()
    for command in ("eval", "resume"):
        message = refused(command, run_copy)
        assert message.startswith(f"{recipe}: ")
        assert message.endswith(f"; copy {run_copy}/checkpoints/step-256/recipe.toml there")


def test_a_run_that_does_not_say_how_long_it_is(refused: Refused, run_copy: Path) -> None:
    recipe = run_copy / "recipe.toml"
    lines = recipe.read_text().splitlines()
    recipe.write_text("\n".join(line for line in lines if not line.startswith("total_steps")))
    assert "give --total-steps" in refused("resume", run_copy)


def test_a_damaged_recipe(refused: Refused, run_copy: Path) -> None:
    (run_copy / "recipe.toml").write_text("seed = = 3")
    assert "not valid TOML" in refused("eval", run_copy)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[algoritm]\nname = 'ppo'\n", ["'algoritm'", "did you mean 'algorithm'"]),
        ("sed = 3\n", ["'sed'", "did you mean 'seed'"]),
        ("[algorithm]\nlearning_rat = 1.0\n", ["learning_rat", "did you mean 'learning_rate'"]),
        ("[algorithm]\nlearning_rate = 'fast'\n", ["algorithm.learning_rate", "'fast'"]),
        ("[algorithm.optimizer]\nespilon = 1.0\n", ["algorithm.optimizer.espilon"]),
        ("[algorithm.optimiser]\neps = 1.0\n", ["my.toml: algorithm.optimiser: unknown option"]),
        ("[trainer]\nlog_evry = 10\n", ["trainer.log_evry", "did you mean 'log_every'"]),
        (
            "[trainer]\ntotal_steps = 0\n",
            ["my.toml: total_steps must be a whole number of at least 1"],
        ),
        ("[trainer]\ntotal_steps = 'all'\n", ["my.toml: total_steps", "'all'"]),
        (
            "[trainer]\ntotal_steps = 5\n[resolved]\ntotal_steps = 6\n",
            ["my.toml: [trainer] says total_steps = 5, but [resolved] total_steps = 6"],
        ),
        ("[resolved]\ntotal_step = 6\n", ["my.toml: resolved.total_step", "'total_steps'"]),
        ("seed = -1\n", ["my.toml: seed must be a whole number of at least 0, got -1"]),
        ("device = 'gpu'\n", ["my.toml: device 'gpu' is unknown"]),
        ("device = 3\n", ["my.toml: device: got 3"]),
        (
            "[algorithm]\ngamma = 2.0\n",
            ["my.toml: algorithm.gamma must be a number in [0, 1], got 2.0"],
        ),
        (
            "[env]\nnum_envs = 0\n",
            ["my.toml: num_envs must be a whole number of at least 1, got 0"],
        ),
        ("[algorithm]\nname = 'a2c'\n", ["ALGO is 'ppo'", "my.toml says algorithm 'a2c'"]),
        ("[env]\nname = 'Acrobot-v1'\n", ["ENV is 'CartPole-v1'", "'Acrobot-v1'"]),
        ("[actor]\nname = 7\n", ["my.toml", "[actor] name"]),
    ],
)
def test_configuration_files_that_do_not_fit(
    refused: Refused, needs_ppo: None, text: str, parts: list[str]
) -> None:
    Path("my.toml").write_text(text)
    message = refused("train", "ppo", "CartPole-v1", "--config=my.toml", "--run-dir=run")
    for part in parts:
        assert part in message


def test_configuration_files_in_json_that_do_not_fit(refused: Refused, needs_ppo: None) -> None:
    words = ("train", "ppo", "CartPole-v1", "--config=my.json", "--run-dir=run")
    Path("my.json").write_text('{\n "algorithm": {"gamma": 2.0}}')
    assert "my.json: algorithm.gamma must be a number in [0, 1], got 2.0" in refused(*words)
    Path("my.json").write_text('{\n "algorithm": {gamma: 2.0}}')
    assert "my.json: not valid JSON (Expecting property name" in refused(*words)
    assert "line 2 column 16" in refused(*words)


@pytest.mark.parametrize("value", ["0", "'all'"])
def test_a_wrong_length_in_the_file_is_refused_even_where_the_flag_wins(
    refused: Refused, needs_ppo: None, value: str
) -> None:
    Path("my.toml").write_text(f"[trainer]\ntotal_steps = {value}\n")
    words = ("ppo", "CartPole-v1", "--config=my.toml", "--run-dir=run", "--total-steps=64")
    assert "my.toml: total_steps" in refused("train", *words)


def test_a_warning_before_an_error_is_not_printed(
    refused: Refused, needs_ppo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable() -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("the driver\nis too old", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    assert "torch sees no CUDA device" in refused("train", "ppo", "CartPole-v1", "--device", "cuda")


def test_a_fault_of_the_users_code_is_located(
    refused: Refused, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_bog.py").write_text(
        "import gymnasium\n"
        "class Bog(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        return self.observation_space.sample(), {}\n"
        "    def step(self, action):\n"
        "        return {}['missing']\n"
        "gymnasium.register('Bog-v0', Bog, max_episode_steps=5)\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("train", "ppo", "Bog-v0", *tiny, "--import=my_bog", "--env.vectorization=sync")
    message = refused(*words, "--total-steps=64")
    assert "step() raised KeyError: 'missing'" in message
    assert f"({tmp_path / 'my_bog.py'}, line 9)" in message


@pytest.mark.parametrize(
    ("before", "after", "option"),
    [("CartPole-v1", "CartPole-v0", "env.name"), ("seed = 0\n", "seed = 5\n", "seed")],
)
def test_a_run_whose_name_or_seed_was_edited(
    refused: Refused, run_copy: Path, before: str, after: str, option: str
) -> None:
    recipe = run_copy / "recipe.toml"
    assert before in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(before, after))
    message = refused("resume", run_copy, "--total-steps=512")
    assert f"recipe.toml was edited: its {option} is not that of step-256" in message
