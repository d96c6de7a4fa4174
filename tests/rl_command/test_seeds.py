"""Several seeds of one recipe: trained one after the other or side by side, evaluated together."""

import csv
import functools
import gc
import json
import re
import shutil
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from gymnasium.envs.classic_control import CartPoleEnv

from rl_command.errors import UsageError
from rl_command.evaluation import described_over_runs
from rl_command.seeds import _side_by_side, read_seeds
from rl_core.errors import ConfigError
from rl_train import Trainer, make
from rl_train.collecting import Collector
from rl_train.evaluation import summarize
from support.signals import kill_itself

Run = Callable[..., tuple[int, str, str]]
Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("1..3", (1, 2, 3)), ("7", (7,)), ("1,2,7", (1, 2, 7)), ("0..1, 5", (0, 1, 5))],
)
def test_seeds_are_written_as_a_range_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1..", "-1", "1,1", "2..1", "1..99999999999"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--seeds: got"):
        read_seeds(text)


def test_each_run_is_one_sample() -> None:
    text = described_over_runs(summarize([1.0, 2.0, 3.0, 10.0]))
    found = re.fullmatch(r"4 seeds: IQM 2.5, 95 % interval (\S+) to (\S+) \(mean 4.0 ± 3.5\)", text)
    assert found is not None
    low, high = map(float, found.groups())
    assert 1.0 <= low < 2.5 < high <= 10.0


@pytest.fixture
def group(trained_group: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_group, tmp_path / "group"))


def steps_of(run: Path) -> int:
    return int(json.loads((run / "summary.json").read_text())["total_steps"])


def test_each_seed_has_a_run_of_its_own(trained_group: Path) -> None:
    assert {path.name for path in trained_group.iterdir()} == {"recipe.toml", "seed-3", "seed-4"}
    for seed in (3, 4):
        run = trained_group / f"seed-{seed}"
        assert f"seed = {seed}\n" in (run / "recipe.toml").read_text()
        assert steps_of(run) >= 256
    first, second = ((trained_group / f"seed-{s}/metrics.jsonl").read_text() for s in (3, 4))
    assert first != second


def test_a_second_call_skips_what_has_finished_and_resumes_the_rest(
    rl: Run, group: Path, tiny: tuple[str, ...]
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--seeds=3..4", f"--run-dir={group}")
    assert rl("resume", group / "seed-3", "--total-steps=320")[0] == 0
    status, out, err = rl(*words, "--total-steps=320")
    assert status == 0, err
    assert "seed 3: has finished, and is skipped\n" in err
    assert "seed 4" not in err.replace("seed 4: 320 of 320", "")
    assert [steps_of(group / f"seed-{seed}") for seed in (3, 4)] == [320, 320]
    lines = out.splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["seed 3", "seed 4", "2 seeds"]
    assert f"rl eval {group}" in out
    assert f"rl plot {group}" in out


def test_a_run_that_ended_before_its_first_checkpoint_starts_anew(
    rl: Run, group: Path, tiny: tuple[str, ...]
) -> None:
    run = group / "seed-4"
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--progress=none")
    for has_lines in (True, False):
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").mkdir()
        (run / "summary.json").unlink()
        if not has_lines:  # it was killed before the first line
            (run / "metrics.jsonl").write_text("")
        status, _, err = rl(*words, "--seeds=4", f"--run-dir={group}")
        assert status == 0
        assert ("begins anew, as it has no checkpoint" in err) == has_lines
        assert steps_of(run) == 256
    (kept,) = group.glob("seed-4-*")  # what was written the first time is not lost
    assert (kept / "metrics.jsonl").read_text()


def test_a_seed_whose_checkpoints_are_damaged_does_not_end_the_others(
    rl: Run, group: Path, tiny: tuple[str, ...]
) -> None:
    for path in group.glob("seed-3/checkpoints/*/state.json"):
        path.write_text("{}")
    for seed in (3, 4):
        (group / f"seed-{seed}/summary.json").unlink()
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=512", "--progress=none")
    status, _, err = rl(*words, "--seeds=3..4", f"--run-dir={group}")
    assert status == 2
    assert "rl: error: seed 3: none of the 1 checkpoints" in err
    assert steps_of(group / "seed-4") == 512


def test_a_seed_that_was_continued_and_killed_is_not_finished(
    rl: Run, group: Path, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("killed")

    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=512", "--progress=none")
    with monkeypatch.context() as patch:
        patch.setattr(Collector, "collect", fail)
        status, _, err = rl(*words, "--seeds=3..4", f"--run-dir={group}")
    assert status == 1
    assert "rl: error: seed 3: ended by the exception above" in err
    assert "rl: error: seed 4: ended by the exception above" in err  # one does not end the other
    status, _, err = rl(*words, "--seeds=3..4", f"--run-dir={group}")
    assert status == 0
    assert "skipped" not in err
    assert [steps_of(group / f"seed-{seed}") for seed in (3, 4)] == [512, 512]


@pytest.mark.parametrize("unit", ["episodes", "updates"])
def test_finished_seeds_may_go_on_by_other_units(
    rl: Run, group: Path, tiny: tuple[str, ...], unit: str
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--progress=none", "--seeds=3")
    summary = json.loads((group / "seed-3/summary.json").read_text())
    reached = summary[f"total_{unit}"]
    for target, skips in ((reached, True), (reached + 5, False), (reached + 5, True)):
        status, _, err = rl(*words, f"--total-{unit}={target}", f"--run-dir={group}")
        assert status == 0, err
        assert ("skipped" in err) == skips
    summary = json.loads((group / "seed-3/summary.json").read_text())
    assert summary[f"total_{unit}"] >= reached + 5


def test_seeds_of_another_length_are_not_pooled(
    refused: Refused, group: Path, tiny: tuple[str, ...]
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--seeds=3..5", f"--run-dir={group}")
    for length in ("--total-steps=128", "--total-updates=1"):
        message = refused(*words, length)
        assert "seed-3 was trained with total_steps=256; give that length, a longer" in message
    assert not (group / "seed-5").exists()


@pytest.mark.parametrize("unit", ["episodes", "updates"])
def test_a_seed_that_was_killed_in_its_last_evaluation_has_finished(
    rl: Run, group: Path, tiny: tuple[str, ...], unit: str
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--progress=none", "--seeds=3")
    reached = json.loads((group / "seed-3/summary.json").read_text())[f"total_{unit}"]
    (group / "seed-3/summary.json").unlink()
    status, _, err = rl(*words, f"--total-{unit}={reached}", f"--run-dir={group}")
    assert status == 0, err
    assert "seed 3: has finished, and is skipped; it was not evaluated at its end" in err


def test_the_memory_of_a_seed_is_free_before_the_next_one_begins(
    rl: Run, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Trainer]] = []
    alive: list[int] = []
    build = Trainer.__init__

    @functools.wraps(build)
    def note(self: Trainer, *args: Any, **kwargs: Any) -> None:
        alive.append(sum(other() is not None for other in made))
        build(self, *args, **kwargs)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Trainer, "__init__", note)
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--seeds=1..3")
    gc.disable()
    try:
        assert rl(*words, f"--run-dir={tmp_path / 'several'}")[0] == 0
    finally:
        gc.enable()
    assert alive == [0, 0, 0]


def test_seeds_train_side_by_side(rl: Run, group: Path, tiny: tuple[str, ...]) -> None:
    shutil.rmtree(group / "seed-4")
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--jobs=2")
    status, out, err = rl(*words, "--seeds=3..5", f"--run-dir={group}")
    assert status == 0, err
    assert "3 seeds: IQM " in out
    assert [steps_of(group / f"seed-{seed}") for seed in (4, 5)] == [256, 256]


def test_a_seed_that_fails_beside_others_fails_the_command(
    rl: Run, group: Path, tiny: tuple[str, ...]
) -> None:
    recipe = group / "seed-4/recipe.toml"
    recipe.write_text(recipe.read_text().replace("seed = 4\n", "seed = 5\n"))  # which is refused
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=320", "--jobs=2")
    status, _, err = rl(*words, "--seeds=3..4", f"--run-dir={group}")
    assert status == 2
    assert f"rl: to continue: the same command with --run-dir {group}\n" in err
    assert steps_of(group / "seed-3") == 320


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_run_goes_to_the_device_that_is_asked_for(
    refused: Refused, group: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    more = ["--total-steps=320"] if command == "resume" else []
    message = refused(command, group / "seed-3", "--device=cuda", *more)
    assert "torch sees no CUDA device" in message


def test_a_group_with_other_options_is_refused(
    refused: Refused, group: Path, trained_run: Path, tiny: tuple[str, ...]
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--seeds=3..4")
    message = refused(*words, "--algorithm.gamma=0.9", f"--run-dir={group}")
    assert "holds runs with other options (algorithm.gamma is 0.99 there, 0.9 here)" in message
    assert "exists and is not empty" in refused(*words, f"--run-dir={trained_run}")


def test_a_single_number_is_one_seed(rl: Run, tmp_path: Path, tiny: tuple[str, ...]) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--seeds=4")
    status, _, err = rl(*words, f"--run-dir={tmp_path / 'new'}")
    assert status == 0, err
    assert "--seeds 4 is one run, with seed 4; for 4 runs give --seeds 1..4" in err


def test_a_group_is_evaluated_over_its_seeds(rl: Run, trained_group: Path) -> None:
    status, out, err = rl("eval", trained_group, "--episodes=3", "--json")
    assert (status, err) == (0, "")
    table = json.loads(out)
    assert (table["num_runs"], table["num_episodes"]) == (2, 6)
    assert [Path(run["checkpoint"]).parts[-3] for run in table["runs"]] == ["seed-3", "seed-4"]
    assert [run["run_seed"] for run in table["runs"]] == [3, 4]
    assert table["mean"] == pytest.approx(sum(run["mean"] for run in table["runs"]) / 2)
    low, high = table["ci95"]
    assert low <= table["iqm"] <= high
    _, out, _ = rl("eval", trained_group, "--episodes=3")
    assert "ppo on CartPole-v1, seed 4, step 256, deterministic: " in out
    assert out.splitlines()[-1].startswith("2 seeds: IQM ")


def test_curves_are_drawn_with_a_band_over_the_seeds(
    rl: Run, trained_group: Path, trained_run: Path
) -> None:
    words = ("plot", trained_group, "-o", "curves.png", "--csv", "curves.csv")
    assert rl(*words) == (0, "wrote curves.png\nwrote curves.csv\n", "")
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")
    with Path("curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["64", "128", "192", "256"]
    assert {row["curve"] for row in rows} == {"ppo on CartPole-v1 (2 runs)"}
    for row in rows:
        assert float(row["low"]) <= float(row["value"]) <= float(row["high"])
    status, out, _ = rl("plot", trained_run, trained_group)
    assert status == 0
    assert out.startswith("ppo on CartPole-v1 (3 runs): train/episode_return\n")
    assert "┤" in out


def test_runs_with_other_options_have_a_curve_of_their_own(
    rl: Run, trained_run: Path, trained_group: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained_run, other)
    recipe = other / "recipe.toml"
    text = recipe.read_text()
    assert "gamma = 0.99\n" in text
    recipe.write_text(text.replace("gamma = 0.99\n", "gamma = 0.9\n"))
    status, _, _ = rl("plot", trained_run, trained_group, other, "--csv", "curves.csv")
    assert status == 0
    with Path("curves.csv").open() as file:
        names = {row["curve"]: row["runs"] for row in csv.DictReader(file)}
    assert names == {
        f"ppo on CartPole-v1, {trained_run} (3 runs)": "3",
        f"ppo on CartPole-v1, {other}": "1",
    }


def test_runs_of_other_lengths_keep_apart_where_the_storage_follows_a_schedule(
    rl: Run, trained_run: Path, tmp_path: Path
) -> None:
    for name, length in (("short", 256), ("long", 512)):
        shutil.copytree(trained_run, tmp_path / name)
        recipe = tmp_path / name / "recipe.toml"
        text = recipe.read_text().replace("total_steps = 256\n", f"total_steps = {length}\n")
        prioritized = '[storage]\nprioritized = { beta = "linear(0.4, 1.0)" }\n'
        assert text.count("[storage]\n") == 1
        recipe.write_text(text.replace("[storage]\n", prioritized))
    status, out, _ = rl("plot", tmp_path / "short", tmp_path / "long", "--csv", "curves.csv")
    assert status == 0, out
    with Path("curves.csv").open() as file:
        assert {row["runs"] for row in csv.DictReader(file)} == {"1"}


def test_runs_share_a_curve_whatever_process_stepped_their_environments(
    rl: Run, trained_run: Path, tmp_path: Path
) -> None:
    for seed, written in ((7, "sync"), (8, "async")):
        shutil.copytree(trained_run, tmp_path / f"seed-{seed}")
        recipe = tmp_path / f"seed-{seed}" / "recipe.toml"
        values = {"vectorization": f'"{written}"', "num_workers": "2", "seed": str(seed)}
        text = recipe.read_text()
        for name, value in values.items():
            text, count = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
            assert count == 1
        recipe.write_text(text)
    status, out, err = rl("plot", tmp_path / "seed-7", tmp_path / "seed-8")
    assert (status, err) == (0, "")
    assert out.startswith("ppo on CartPole-v1 (2 runs)")


def test_runs_on_environments_of_ones_own_are_told_apart_by_their_classes(
    rl: Run, needs_ppo: None, tmp_path: Path
) -> None:
    class First(CartPoleEnv):
        pass

    class Second(CartPoleEnv):
        pass

    options: dict[str, Any] = {"num_envs": 2, "num_steps": 64, "hidden_sizes": [8]}
    for number, env in enumerate((First, First, Second)):
        agent = make("ppo", env, seed=number, **options)
        agent.train(128, run_dir=tmp_path / f"run-{number}", progress=False)
    status, _, err = rl("plot", *sorted(tmp_path.glob("run-*")), "--csv", "curves.csv")
    assert (status, err) == (0, "")
    with Path("curves.csv").open() as file:
        names = {row["curve"] for row in csv.DictReader(file)}
    assert names == {"ppo on First (2 runs)", "ppo on Second"}


def test_curves_of_one_folder_keep_apart(rl: Run, trained_run: Path, tmp_path: Path) -> None:
    for name, gamma in (("seed-1", 0.99), ("seed-2", 0.99), ("seed-3", 0.9), ("seed-4", 0.9)):
        shutil.copytree(trained_run, tmp_path / "both" / name)
        recipe = tmp_path / "both" / name / "recipe.toml"
        text = recipe.read_text().replace("gamma = 0.99\n", f"gamma = {gamma}\n")
        recipe.write_text(re.sub(r"(?m)^seed = \d+$", f"seed = {name[-1]}", text))
    status, _, _ = rl("plot", tmp_path / "both", "--csv", "curves.csv")
    assert status == 0
    with Path("curves.csv").open() as file:
        names = {row["curve"] for row in csv.DictReader(file)}
    title = f"ppo on CartPole-v1, {tmp_path / 'both'}"
    assert names == {
        f"{title}, {tmp_path / 'both' / name} (2 runs)" for name in ("seed-1", "seed-3")
    }


def test_evaluating_runs_of_different_lengths_says_so(
    rl: Run, trained_group: Path, tmp_path: Path
) -> None:
    group = shutil.copytree(trained_group, tmp_path / "both")
    words = ("eval", group, "--episodes", "2")
    assert "the runs have" not in rl(*words)[2]
    assert rl("resume", group / "seed-4", "--total-steps", "320", "--progress=none")[0] == 0
    assert "rl: warning: the runs have 256 to 320 steps" in rl(*words)[2]


def test_a_seed_that_is_killed_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    status = _side_by_side([(kill_itself, [], "seed 3"), (kill_itself, [], "seed 4")], 2)
    assert status == 128 + signal.SIGKILL
    err = capfd.readouterr().err
    assert sorted(err.splitlines()) == [
        f"rl: error: seed {seed}: killed by SIGKILL" for seed in (3, 4)
    ]


def test_a_repeated_seed_is_a_curve_of_its_own(rl: Run, trained_run: Path, tmp_path: Path) -> None:
    shutil.copytree(trained_run, tmp_path / "again")
    status, _, _ = rl("plot", trained_run, tmp_path / "again", "--csv", "curves.csv")
    assert status == 0
    with Path("curves.csv").open() as file:
        names = {row["curve"] for row in csv.DictReader(file)}
    title = "ppo on CartPole-v1"
    assert names == {f"{title}, {trained_run}", f"{title}, {tmp_path / 'again'}"}


def test_a_metric_that_no_run_has_is_refused(refused: Refused, trained_run: Path) -> None:
    message = refused("plot", trained_run, "--metric", "train/episode_retrun")
    assert (
        "has no values of 'train/episode_retrun'; did you mean 'train/episode_return'?" in message
    )
    message = refused("plot", trained_run, "--metric", "test/episode_return")
    assert "train with --trainer.test-every" in message


def test_a_run_without_an_ended_episode_is_refused(
    refused: Refused, trained_run: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "young")
    (run / "metrics.jsonl").write_text('{"step": 8, "time": 1.0, "train/episode_return": null}\n')
    assert "no episode has ended: train longer, or with --trainer.test" in refused("plot", run)
    (run / "metrics.jsonl").write_text('{"step": 8, "time": 1.0, "test/episode_return": 3.0}\n')
    assert "shown by --metric test/episode_return" in refused("plot", run)


def test_runs_without_values_or_of_other_lengths_are_warned_of(
    rl: Run, trained_group: Path, tmp_path: Path
) -> None:
    group = shutil.copytree(trained_group, tmp_path / "group")
    runs = sorted(group.glob("seed-*"))
    lines = [f'{{"step": {s}, "time": 1.0, "train/episode_return": {s}.0}}\n' for s in (1, 2, 3)]
    for run, count in zip(runs, (3, 1, 0), strict=False):
        (run / "metrics.jsonl").write_text("".join(lines[:count]))
    status, _, err = rl("plot", *runs[:2])
    assert status == 0, err
    assert f"drawn up to step 1, where {runs[1]} ends; others reach 3" in err
    for run in runs[1:]:
        (run / "metrics.jsonl").write_text("")
    status, out, err = rl("plot", group)
    assert status == 0, err
    assert f"{runs[1]} is left out: it has no values of 'train/episode_return'" in err
    assert "3 steps" in out


def test_runs_that_began_with_other_weights_have_a_curve_of_their_own(
    rl: Run, trained_run: Path, tmp_path: Path
) -> None:
    warm = tmp_path / "warm"
    shutil.copytree(trained_run, warm)
    recipe = warm / "recipe.toml"
    text = re.sub(r"(?m)^seed = \d+$", "seed = 77", recipe.read_text())
    recipe.write_text(text.replace("[resolved]\n", '[resolved]\nrestart_model = "earlier"\n'))
    assert 'restart_model = "earlier"' in recipe.read_text()
    assert rl("plot", trained_run, warm, "--csv", "curves.csv")[0] == 0
    with Path("curves.csv").open() as file:
        assert {row["runs"] for row in csv.DictReader(file)} == {"1"}


def test_a_group_that_began_with_other_weights_is_refused(
    refused: Refused, group: Path, trained_run: Path, tiny: tuple[str, ...]
) -> None:
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--seeds=3..5")
    message = refused(*words, f"--restart-model={trained_run}", f"--run-dir={group}")
    assert "holds runs with other weights" in message


def test_a_seed_that_a_callback_ended_has_finished(
    rl: Run, group: Path, tiny: tuple[str, ...]
) -> None:
    recipe = group / "seed-3/recipe.toml"
    assert "total_steps = 256\n" in recipe.read_text()
    recipe.write_text(recipe.read_text().replace("total_steps = 256\n", "total_steps = 6400\n"))
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=6400", "--seeds=3")
    status, _, err = rl(*words, f"--run-dir={group}")
    assert (status, err) == (0, "seed 3: has finished, and is skipped\n")
    assert steps_of(group / "seed-3") == 256


def test_a_seed_that_was_not_evaluated_says_so(rl: Run, group: Path, tiny: tuple[str, ...]) -> None:
    (group / "seed-4/summary.json").unlink()
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--seeds=3..4")
    status, _, err = rl(*words, f"--run-dir={group}")
    assert status == 0
    hint = f"has finished, and is skipped; it was not evaluated at its end: rl eval {group}"
    assert f"seed 4: {hint}/seed-4\n" in err


def test_a_seed_that_another_process_trains_is_left_alone(
    refused: Refused, group: Path, tiny: tuple[str, ...]
) -> None:
    shutil.rmtree(group / "seed-4/checkpoints")
    (group / "seed-4/summary.json").unlink()
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=256", "--seeds=4")
    with FileLock(group / "seed-4/.lock"):
        assert "is being trained by another process" in refused(*words, f"--run-dir={group}")
    assert (group / "seed-4/metrics.jsonl").is_file()


def test_a_seed_that_fails_does_not_end_the_others(
    rl: Run, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Trainer.__init__

    @functools.wraps(build)
    def refuse_the_first(self: Trainer, *args: Any, **kwargs: Any) -> None:
        if kwargs["seed"] == 1:
            raise ConfigError("not this one")
        build(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "__init__", refuse_the_first)
    group = tmp_path / "group"
    words = ("train", "ppo", "CartPole-v1", *tiny, "--total-steps=64", "--seeds=1..2")
    status, out, err = rl(*words, f"--run-dir={group}")
    assert status == 2
    assert "rl: error: seed 1: not this one\n" in err
    assert f"rl: to continue: the same command with --run-dir {group}\n" in err
    assert "seed 2: final return" in out


def test_other_folders_beside_the_seeds_are_no_runs(rl: Run, group: Path) -> None:
    shutil.copytree(group / "seed-3", group / "seed-3-copy")
    status, out, err = rl("plot", group)
    assert status == 0, err
    assert "(2 runs)" in out
