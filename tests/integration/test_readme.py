import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import snippets

import docs
from rl_command.main import main as rl

PACKAGES = sorted((docs.ROOT / "packages").iterdir())
PAGES = [docs.ROOT / "README.md", *sorted(docs.PAGES.rglob("*.md"))]
PAGES += [package / "README.md" for package in PACKAGES]
RUNNABLE = [
    page
    for page in PAGES
    if page != docs.PLUGIN_PAGE and list(snippets.snippets(page.read_text("utf-8")))
]
"""Pages with something to run; the one on plug-ins runs where its plug-in is installed."""


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_what_a_page_says_works(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    snippets.run_page(page)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_packages_example_needs_only_what_it_says_to_install(package: Path) -> None:
    readme = (package / "README.md").read_text("utf-8")
    imported = {
        name.partition(".")[0]
        for snippet in snippets.snippets(readme)
        if not snippet.is_command
        for node in ast.walk(ast.parse(snippet.text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    ours = {name.replace("_", "-") for name in imported if name.startswith("rl_")}
    (line,) = re.findall(r"^\$ pip install (.*)$", readme, re.MULTILINE)
    installed = set(re.findall(r"\./packages/([\w-]+)", line))
    assert ours | {"rl-core", package.name} <= installed


def test_every_hatch_command_is_there() -> None:
    environments = tomllib.loads((docs.ROOT / "hatch.toml").read_text("utf-8"))["envs"]
    known = {
        script if name == "default" else f"{name}:{script}"
        for name, environment in environments.items()
        for script in environment.get("scripts", {})
    }
    texts = [page.read_text("utf-8") for page in PAGES]
    texts += [page.read_text("utf-8") for page in (docs.ROOT / ".github").glob("*.md")]
    used = {word for text in texts for word in re.findall(r"hatch run ([\w:]+)", text)}
    tools = {word for word in used if word.partition(":")[2] in {"towncrier"}}
    assert used
    assert used - tools - known == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


def test_counts_are_scaled_and_nothing_else() -> None:
    python = "agent.train(total_steps=50_000, num_envs=8); evaluate(num_episodes=100)"
    assert snippets.scaled(python) == (
        "agent.train(total_steps=1000, num_envs=8); evaluate(num_episodes=10)"
    )
    assert snippets.scaled("train a B-v1 --total-steps 100000 --seed 50") == (
        "train a B-v1 --total-steps 2000 --seed 50"
    )
    assert snippets.scaled("train dqn B-v1 --total-steps 5000") == (
        "train dqn B-v1 --total-steps 100 --algorithm.update-after 50"
    )
    assert snippets.scaled("train ppo B-v1 --preset") == (
        "train ppo B-v1 --preset --total-steps 100"
    )
    given = "train dqn B-v1 --algorithm.update-after 7"
    assert snippets.scaled(given) == given


def test_the_step_that_ended_a_run_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (docs.PAGES / "training.md").read_text("utf-8")
    (snippet,) = (each for each in snippets.snippets(page) if "def look_into" in each.text)
    names: dict[str, Any] = {}
    exec(snippet.text, names)
    rate = "--algorithm.learning-rate 1e30 --trainer.compile off"
    assert rl(f"train ppo CartPole-v1 --total-steps 20000 --run-dir bad {rate}".split()) == 2
    (step,) = Path("bad", "nonfinite").iterdir()
    names["look_into"]("bad", int(step.name.removeprefix("step-")))
    assert "loss/policy" in capsys.readouterr().out


def test_a_failing_command_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```console\n$ rl eval nowhere\n```\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"page\.md:3: rl eval nowhere ended with status 2"):
        snippets.run_page(page)
