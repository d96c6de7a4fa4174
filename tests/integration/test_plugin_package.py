"""A package outside the repository, installed and used as any user would."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import docs

NAMES = {
    "algorithms": "reinforce",
    "envs": "corridor",
    "callbacks": "stop-at-return",
    "loggers": "my-csv",
    "samplers": "by-return",
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the plug-in out of the repository, and install it into a folder of its own."""
    workspace = tmp_path_factory.mktemp("plugin")
    copy, site = workspace / "my-plugin", workspace / "site"
    shutil.copytree(docs.PLUGIN, copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--no-build-isolation", "--target", str(site), str(copy)]
    subprocess.run(command, check=True)
    assert (site / "my_plugin" / "py.typed").exists()
    return workspace


def run(plugin: Path, *words: str | Path, **variables: str) -> str:
    """Run Python with the plug-in's folder on its path, away from the repository."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=plugin / "my-plugin",
        env={**os.environ, "PYTHONPATH": str(plugin / "site"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass(plugin: Path) -> None:
    output = run(plugin, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "tests")
    assert " passed" in output


def test_it_is_listed(plugin: Path) -> None:
    listed = json.loads(run(plugin, "-m", "rl_command", "list", "--json"))
    for kind, name in NAMES.items():
        assert listed[kind][name]["distribution"] == "my-plugin"
        assert listed[kind][name]["allowed"]


def test_it_trains_by_name_and_learns(plugin: Path) -> None:
    run_dir = plugin / "runs" / "corridor"
    train = ("-m", "rl_command", "train", "reinforce", "corridor", "--seed", "1")
    run(plugin, *train, "--total-steps", "20000", "--run-dir", run_dir)
    recipe = (run_dir / "recipe.toml").read_text("utf-8")
    assert all(f'name = "{name}"' in recipe for name in ("reinforce", "corridor"))
    lines = (run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    returns = [json.loads(line).get("train/episode_return") for line in lines]
    assert returns[0] < 0.4  # a random walk ends at either end
    assert returns[-1] > 0.9
    evaluation = json.loads(
        run(plugin, "-m", "rl_command", "eval", run_dir, "--episodes", "50", "--json")
    )
    assert evaluation["num_episodes"] == 50
    assert evaluation["mean"] > 0.95


def test_it_trains_with_its_logger_and_callback_by_name(plugin: Path) -> None:
    (allowed,) = re.findall(r"`RL_PLUGINS=(\S+)`", docs.PLUGIN_PAGE.read_text("utf-8"))
    run_dir = plugin / "runs" / "watched"
    command = ("-m", "rl_command", "train", "reinforce", "corridor", "--total-steps", "20000")
    logger = ("--trainer.loggers", "text", f'{{name = "my-csv", path = "{plugin}/returns.csv"}}')
    callback = ("--trainer.callbacks", '{name = "stop-at-return", threshold = -1.0}')
    run(plugin, *command, *logger, *callback, "--run-dir", run_dir, RL_PLUGINS=allowed)
    steps = [line.split(",")[0] for line in (plugin / "returns.csv").read_text("utf-8").split()]
    assert steps[0] == "step"
    assert int(steps[-1]) < 20000  # the callback ended the run
    assert f"--- step {int(steps[-1]):,}, " in (run_dir / "metrics.txt").read_text("utf-8")
    assert "threshold = -1.0" in (run_dir / "recipe.toml").read_text("utf-8")


def test_what_its_page_says_works(plugin: Path) -> None:
    run(plugin, docs.ROOT / "tools" / "snippets.py", docs.PLUGIN_PAGE)


def test_each_page_is_read_in_one_sitting() -> None:
    for page in docs.PLUGIN_PAGES:
        assert len(page.read_text("utf-8").splitlines()) <= 200, page.name


def test_the_pages_show_every_file_as_it_is() -> None:
    pages = [page.read_text("utf-8") for page in docs.PLUGIN_PAGES]
    for page in pages:
        assert page == docs.with_files(page, docs.PLUGIN), "run python tools/docs.py"
    files = {path for path in docs.PLUGIN.rglob("*") if path.is_file() and path.stat().st_size}
    shown = {docs.PLUGIN / name for page in pages for name in docs.titled_files(page)}
    assert {path for path in files if "__pycache__" not in path.parts} == shown


def test_its_sources_need_the_contracts_alone() -> None:
    """The callback's contract is the runtime's; all others are rl-core's."""
    sources = {path.name: path.read_text("utf-8") for path in docs.PLUGIN.rglob("src/**/*.py")}
    packages = {path.name.replace("-", "_") for path in (docs.ROOT / "packages").iterdir()}
    for name, text in sources.items():
        used = {package for package in packages if re.search(rf"\b{package}\b", text)}
        assert used <= {"rl_train" if name == "stop_at_return.py" else "rl_core"}, name


def test_each_part_is_short() -> None:
    for path in docs.PLUGIN.glob("src/my_plugin/*.py"):
        assert code_lines(path.read_text("utf-8")) <= 64, path.name


def code_lines(text: str) -> int:
    """Count lines that are neither blank nor part of a comment or a docstring."""
    tree = ast.parse(text)
    documents = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    return len(lines - documents)
