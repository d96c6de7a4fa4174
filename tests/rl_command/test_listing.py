"""What is installed is listed without being imported."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest

from rl_core import plugins

Run = Callable[..., tuple[int, str, str]]

PLANTED = """'''Grows.'''
from planted_pots import Clay as Pot
class Weed:
    '''Grow everywhere, as in Eq. (1). Nobody wants it.'''
raise SystemExit("imported")
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install a distribution whose module must never be imported."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "planted_module.py").write_text(PLANTED)
    (site / "planted_pots.py").write_text("def Clay():\n    pass\n")
    folder = site / "planted-2.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: planted\nVersion: 2.5\nSummary: Grows things\n"
    )
    (folder / "entry_points.txt").write_text(
        "[rl_core.algorithms]\nweed = planted_module:Weed\n"
        "[rl_core.executors]\npot = planted_module:Pot\n"
    )
    monkeypatch.syspath_prepend(site)
    return "planted_module"


def test_all_kinds_are_listed_in_plain_columns(rl: Run, planted: str) -> None:
    status, out, err = rl("list")
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["kind", "name", "distribution", "version", "description"]
    description = ["Grow", "everywhere,", "as", "in", "Eq.", "(1)."]
    assert ["algorithm", "weed", "planted", "2.5", *description] in lines
    assert ["executor", "pot", "planted", "2.5", "Grows", "things"] in lines
    assert "\x1b" not in out
    assert planted not in sys.modules


def test_one_kind_can_be_listed(rl: Run, planted: str) -> None:
    for kind in ("executors", "executor"):
        status, out, _ = rl("list", kind)
        assert status == 0
        assert "pot" in out
        assert "weed" not in out


def test_several_kinds_are_listed(rl: Run) -> None:
    status, out, _ = rl("list", "loggers", "callbacks", "--json")
    assert status == 0
    assert set(json.loads(out)) == {"loggers", "callbacks"}
    assert {"csv", "tensorboard", "text", "wandb"} <= set(json.loads(out)["loggers"])


def test_an_unknown_kind_names_them_all(rl: Run) -> None:
    status, out, err = rl("list", "zzz")
    assert (status, out) == (2, "")
    assert "there are no components of kind 'zzz'; known: actors, add_ons, algorithms" in err
    assert "presets" in err
    assert "did you mean 'presets'" in rl("list", "prests")[2]
    assert rl("list", "preset")[0] == 0


def test_an_empty_kind_says_so(rl: Run) -> None:
    assert rl("list", "executors") == (0, "no executors are installed\n", "")


def test_json_is_an_object_by_kind_and_name(rl: Run, planted: str) -> None:
    status, out, err = rl("list", "--json")
    assert (status, err) == (0, "")
    tables = json.loads(out)
    assert set(tables) == set(plugins.KINDS)
    assert tables["algorithms"]["weed"] == {
        "distribution": "planted",
        "version": "2.5",
        "description": "Grow everywhere, as in Eq. (1).",
        "entry_point": "planted_module:Weed",
        "allowed": True,
        "rivals": [],
    }
    assert planted not in sys.modules
    _, out, _ = rl("list", "algorithms", "--json")
    assert set(json.loads(out)) == {"algorithms"}


def test_what_is_not_allowed_is_marked(
    rl: Run, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_PLUGINS", "rl-storages")
    _, out, _ = rl("list", "executors")
    assert "not allowed by RL_PLUGINS" in out


def test_what_makes_gymnasiums_environments_is_told_from_an_environment(rl: Run) -> None:
    if "gymnasium" not in plugins.available("env"):
        pytest.skip("needs rl-envs")
    _, out, _ = rl("list", "envs")
    (line,) = [line for line in out.splitlines() if " gymnasium " in line]
    assert "Makes the environments that Gymnasium registers" in line


def test_environments_of_our_own_and_of_imported_modules_are_listed(
    rl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_pond.py").write_text(
        "import gymnasium\n"
        "class Pond(gymnasium.Env):\n"
        "    'Swim about. Slowly.'\n"
        "gymnasium.register('Pond-v0', entry_point=Pond)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "my_pond", None)
    del sys.modules["my_pond"]
    status, out, err = rl("list", "envs", "--import", "my_pond")
    del gymnasium.registry["Pond-v0"]
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["env", "Pond-v0", "my_pond", "-", "Swim", "about."] in lines
    assert any(line[:3] == ["env", "BitFlipping-v0", "rl-envs"] for line in lines)
    assert "Pond-v0" not in rl("list", "envs")[1]


def test_modules_within_packages_and_vectors_alone_are_listed(
    rl: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_lake").mkdir()
    (tmp_path / "my_lake" / "__init__.py").write_text("")
    (tmp_path / "my_lake" / "envs.py").write_text(
        "import gymnasium\n"
        "print('welcome')\n"
        "gymnasium.register('Lake-v0', vector_entry_point='my_lake.envs:Lake')\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("my_lake", "my_lake.envs"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    status, out, err = rl("list", "envs", "--json", "--import", "my_lake.envs")
    del gymnasium.registry["Lake-v0"]
    assert (status, err) == (0, "welcome\n")
    assert json.loads(out)["envs"]["Lake-v0"]["entry_point"] == "my_lake.envs:Lake"


def test_a_module_that_ends_python_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "my_exit.py").write_text("raise SystemExit('usage')\n")
    assert "--import my_exit: " in refused("list", "envs", "--import", "my_exit")


def test_an_unknown_kind_is_refused(refused: Callable[..., str]) -> None:
    assert "did you mean 'algorithms'" in refused("list", "algoritms")
    assert "did you mean 'envs'" in refused("list", "environments")


@pytest.mark.parametrize("words", [["list"], ["list", "presets"], ["list", "--json"]])
def test_looking_something_up_does_not_import_pytorch(words: list[str]) -> None:
    code = (
        "import sys; from rl_command.main import main; "
        "status = main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(status)"
    )
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("source", [b"class Weed(:\n", b"\xff\xfe = 1\n"])
def test_a_plug_in_that_python_cannot_read_is_listed_all_the_same(
    rl: Run, planted: str, tmp_path: Path, source: bytes
) -> None:
    (tmp_path / "site/planted_module.py").write_bytes(source)
    status, out, err = rl("list")
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["algorithm", "weed", "planted", "2.5"] in [line[:4] for line in lines]
