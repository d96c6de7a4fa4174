"""Training, evaluating and resuming a run from the command line."""

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest

import rl_train
from rl_core.config import ComponentSpec
from rl_core.env import VecEnv
from rl_train.builder import build_envs
from rl_train.checkpoint import list_checkpoints, load_checkpoint, state_digest

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_run, tmp_path / "copied"))


def test_a_run_directory_holds_all_about_the_run(trained_run: Path) -> None:
    assert {path.name for path in trained_run.iterdir()} == {
        "recipe.toml",
        "metrics.jsonl",
        "checkpoints",
        "summary.json",
        "curve.png",
    }
    recipe = tomllib.loads((trained_run / "recipe.toml").read_text())
    assert recipe["algorithm"]["name"] == "ppo"
    assert recipe["resolved"]["total_steps"] == 256
    summary = json.loads((trained_run / "summary.json").read_text())
    assert summary["total_steps"] >= 256
    assert summary["wall_seconds"] > 0.0
    assert summary["steps_per_second"] > 0.0
    assert summary["final_return_mean"] > 0.0
    lines = [json.loads(line) for line in (trained_run / "metrics.jsonl").read_text().splitlines()]
    assert {"step", "time", "steps_per_second", "train/episode_return"} <= set(lines[-1])
    checkpoints = list_checkpoints(trained_run / "checkpoints")
    assert [path.name for path in checkpoints] == [f"step-{summary['total_steps']}"]


def test_training_ends_with_a_summary_in_plain_text(rl: Run, tiny: tuple[str, ...]) -> None:
    status, out, err = rl("train", "ppo", "CartPole-v1", *tiny, "--total-steps=512", "--seed=4")
    assert (status, err) == (0, "")
    (directory,) = Path("runs").iterdir()
    assert re.fullmatch(r"ppo-CartPole-v1-s4-\d{8}-\d{6}", directory.name)
    assert out.startswith("ppo on CartPole-v1, seed 4: ")
    for part in (" ± ", " episodes (IQM ", "95 % interval", "┤", f"rl eval {directory}"):
        assert part in out
    assert f"rl resume {directory} --total-steps 1024\n" in out
    assert "\x1b" not in out


def test_a_run_is_evaluated_with_its_own_limit_of_steps(rl: Run, tiny: tuple[str, ...]) -> None:
    limit = ("--trainer.max-test-steps=3", "--total-steps=10", "--run-dir=short")
    assert rl("train", "ppo", "CartPole-v1", *tiny, *limit)[0] == 0
    status, out, _ = rl("eval", "short", "--episodes=2")
    assert (status, out.endswith("2 cut at the limit of steps\n")) == (0, True)
    assert "3.00 ± 0.00 over 2 episodes" in out
    agent = rl_train.load("short")
    assert agent.evaluate(2).mean_length == 3.0
    agent.close()


def test_the_command_that_goes_on_with_a_run_which_took_more_steps_than_asked_for_works(
    rl: Run, tiny: tuple[str, ...]
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=10", "--run-dir=run")
    status, out, _ = rl(*words)
    assert status == 0
    longer = out.splitlines()[-1].split()
    assert longer == ["rl", "resume", "run", "--total-steps", "128"]
    status, out, _ = rl(*longer[1:])
    assert status == 0
    assert ": 64 more steps in" in out
    assert ", 128 in all\n" in out


def test_the_commands_at_the_end_of_a_run_import_what_it_imported(
    rl: Run, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_poles.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Pole-v0', entry_point=CartPoleEnv, max_episode_steps=9)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    words = ["train", "ppo", "Pole-v0", "--import=my_poles", *tiny, "--total-steps=64"]
    try:
        status, out, _ = rl(*words, "--run-dir=run")
        assert status == 0
        evaluate, longer = (line.strip() for line in out.splitlines()[-2:])
        assert evaluate == "next        rl eval run --import my_poles"
        assert longer == "rl resume run --import my_poles --total-steps 128"
        assert longer in rl("resume", "run", "--import=my_poles")[2]
        _, out, _ = rl(*words, "--seeds=1..2", "--run-dir=group")
        assert "rl eval group --import my_poles\n" in out
    finally:
        gymnasium.registry.pop("Pole-v0", None)
        sys.modules.pop("my_poles", None)


def test_evaluation_is_one_json_object(rl: Run, trained_run: Path) -> None:
    status, out, err = rl("eval", trained_run, "--episodes=5", "--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    result = json.loads(out)
    assert result["num_episodes"] == len(result["returns"]) == 5
    assert result["mean"] == pytest.approx(sum(result["returns"]) / 5)
    assert {"std", "iqm", "ci95", "step", "checkpoint", "seed"} <= set(result)
    low, high = result["ci95"]
    assert low <= result["iqm"] <= high


def test_evaluation_depends_on_the_seed_alone(rl: Run, trained_run: Path) -> None:
    first, again, other = (
        json.loads(rl("eval", trained_run, "--episodes=6", "--seed", seed, "--json")[1])["returns"]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_evaluation_reads_well(rl: Run, trained_run: Path) -> None:
    status, out, err = rl("eval", trained_run, "--episodes=3")
    assert (status, err) == (0, "")
    assert out.startswith("ppo on CartPole-v1, step ")
    assert re.search(r"step [\d,]+, deterministic: [\d.]+ ± [\d.]+ over 3 episodes", out)


def test_a_long_evaluation_says_how_far_it_is(
    rl: Run, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_command.evaluation._EVERY_SECONDS", 0.0)
    status, out, err = rl("eval", trained_run, "--episodes=3", "--json")
    assert status == 0
    assert json.loads(out)["num_episodes"] == 3
    finished = [int(line.partition(" of 3 episodes, ")[0]) for line in err.splitlines()]
    assert finished == sorted(finished)
    assert {1, 2, 3} <= set(finished)
    steps = [f"{2 * number:,} steps" for number in range(1, len(finished) + 1)]
    assert [line.partition(" episodes, ")[2] for line in err.splitlines()] == steps


def test_evaluation_may_draw_actions(rl: Run, trained_run: Path) -> None:
    words = ("eval", trained_run, "--episodes=6", "--seed=1")
    certain, drawn, again = (
        json.loads(rl(*words, "--json", *more)[1])
        for more in ((), ("--stochastic",), ("--stochastic",))
    )
    assert (certain["stochastic"], drawn["stochastic"]) == (False, True)
    assert certain["returns"] != drawn["returns"] == again["returns"]
    assert re.search(r", stochastic: .* over 6 episodes", rl(*words, "--stochastic")[1])


def test_what_an_environment_prints_stays_out_of_the_json(
    rl: Run, trained_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talkative(spec: ComponentSpec, seed: int | None, *, num_test_episodes: int) -> VecEnv:
        print("hello from the simulator")
        return build_envs(spec, seed, num_test_episodes=num_test_episodes)

    monkeypatch.setattr("rl_command.evaluation.build_envs", talkative)
    _, out, err = rl("eval", trained_run, "--episodes=2", "--json")
    assert json.loads(out)["num_episodes"] == 2
    assert err == "hello from the simulator\n"


def test_a_run_goes_on_to_a_later_step(rl: Run, run_copy: Path) -> None:
    before = json.loads((run_copy / "summary.json").read_text())["total_steps"]
    status, out, err = rl("resume", run_copy, "--total-steps", before + 100)
    assert status == 0
    assert err == "PPO collects 64 steps at a time: this run ends after 384 steps\n"
    summary = json.loads((run_copy / "summary.json").read_text())
    assert summary["total_steps"] >= before + 100
    more = summary["total_steps"] - before
    assert summary["session_steps"] == more
    assert out.startswith(f"ppo on CartPole-v1, seed 0: {more:,} more steps in")
    lines = [json.loads(line) for line in (run_copy / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == sorted(set(steps))
    recipe = tomllib.loads((run_copy / "recipe.toml").read_text())
    assert recipe["resolved"]["total_steps"] == before + 100


def test_an_unfinished_run_goes_on_to_where_it_was_to_end(rl: Run, run_copy: Path) -> None:
    recipe = run_copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("total_steps = 256", "total_steps = 400"))
    status, _, err = rl("resume", run_copy)
    assert (status, err.count("\n")) == (0, 1)
    assert json.loads((run_copy / "summary.json").read_text())["total_steps"] >= 400


def test_a_run_that_goes_on_leaves_its_recipe_as_it_is(rl: Run, run_copy: Path) -> None:
    recipe = run_copy / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("total_steps = 256", "total_steps = 400"))
    before = recipe.read_text()
    assert rl("resume", run_copy)[0] == 0
    assert recipe.read_text() == before
    (newest,) = run_copy.glob("checkpoints/step-448")
    assert (newest / "recipe.toml").read_text() == before


def test_an_older_checkpoint_is_evaluated_on_request(
    rl: Run, refused: Callable[..., str], run_copy: Path
) -> None:
    (older,) = list_checkpoints(run_copy / "checkpoints")
    rl("resume", run_copy, "--total-steps=400")
    step = older.name.removeprefix("step-")
    status, out, _ = rl("eval", run_copy, "--episodes=2", "--json", "--step", step)
    assert (status, json.loads(out)["checkpoint"]) == (0, str(older))
    message = refused("eval", run_copy, "--step=7")
    assert f"--step 7: {older.parent} holds only {older.name}, step-" in message
    assert "--step has no effect with --best" in refused("eval", run_copy, "--step=7", "--best")


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_damaged_checkpoint_is_passed_over_aloud(rl: Run, run_copy: Path) -> None:
    checkpoints = run_copy / "checkpoints"
    (whole,) = list_checkpoints(checkpoints)
    damaged = checkpoints / "step-100000"
    shutil.copytree(whole, damaged)
    with (damaged / "tensors.safetensors").open("r+b") as file:
        file.seek(200)
        file.write(b"\xff\xff\xff\xff")
    status, out, err = rl("eval", run_copy, "--episodes=2", "--json")
    assert status == 0
    assert json.loads(out)["checkpoint"] == str(whole)
    assert err.startswith(f"rl: warning: step-100000 is damaged, so {whole.name} is used: ")
    assert err.count("\n") == 1
    status, _, err = rl("resume", run_copy, "--total-steps=400")
    assert status == 0
    assert err.startswith("rl: warning: step-100000 is damaged")
    assert "step-100000" not in [path.name for path in list_checkpoints(checkpoints)]


def test_a_run_starts_with_the_weights_of_another_and_resumes_without_it(
    rl: Run, tiny: tuple[str, ...], run_copy: Path
) -> None:
    train = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--run-dir=next")
    # At a learning rate of 0 the weights stay those that were loaded.
    status, _, err = rl(*train, f"--restart-model={run_copy}", "--algorithm.learning-rate=0")
    assert (status, err) == (0, "")
    recipe = tomllib.loads(Path("next/recipe.toml").read_text())
    assert recipe["resolved"]["restart_model"] == str(run_copy)
    saved, loaded = (
        load_checkpoint(list_checkpoints(run / "checkpoints")[-1]).state["algorithm"]
        for run in (run_copy, Path("next"))
    )
    assert isinstance(saved, dict)
    assert isinstance(loaded, dict)
    actors = [
        {name: tensor for name, tensor in state["modules"].items() if name.startswith("actor.")}
        for state in (saved, loaded)
    ]
    assert state_digest(actors[0]) == state_digest(actors[1])
    shutil.rmtree(run_copy)
    status, _, err = rl("resume", "next", "--total-steps=128")
    assert (status, err) == (0, "")
    # The recipe as a configuration file starts from the same weights, which are gone.
    status, _, err = rl("train", "--config=next/recipe.toml", "--run-dir=again")
    assert status == 2
    assert f"{run_copy} is not a run: it is not a directory" in err
    status, _, err = rl(
        "train", "--config=next/recipe.toml", "--run-dir=again", "--restart-model=none"
    )
    assert (status, err) == (0, "")


def test_weights_are_taken_by_part(rl: Run, tiny: tuple[str, ...], run_copy: Path) -> None:
    table = f'{{policy_torso = "{run_copy}"}}'
    train = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--run-dir=next")
    status, _, err = rl(*train, "--restart-model", table)
    assert (status, err) == (0, "")
    recipe = tomllib.loads(Path("next/recipe.toml").read_text())
    assert recipe["resolved"]["restart_model"] == {"policy_torso": str(run_copy)}


def test_a_run_counted_in_updates_ends_and_goes_on_in_updates(
    rl: Run, tiny: list[str], tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    words = ["train", "ppo", "CartPole-v1", *tiny, "--total-updates=2", f"--run-dir={directory}"]
    status, out, _ = rl(*words)
    assert status == 0
    assert f"rl resume {directory} --total-updates 4" in out
    status, _, err = rl("resume", directory)
    assert status == 2
    assert (
        f"has 2 of 2 updates already; to continue: rl resume {directory} --total-updates 4" in err
    )
    status, out, _ = rl("resume", directory, "--total-updates=3")
    assert status == 0
    recipe = tomllib.loads((directory / "recipe.toml").read_text())
    assert recipe["resolved"]["total_updates"] == 3
    assert "total_steps" not in recipe["resolved"]
