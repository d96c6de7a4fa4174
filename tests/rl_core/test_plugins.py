"""Plug-ins are listed without being imported, and loaded only by name and permission."""

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from rl_core import plugins
from rl_core.errors import PluginError

GOOD = """
from rl_core.logger import Logger

class Fine(Logger):
    def log(self, step, metrics): pass
    def close(self): pass

class Wrong:
    pass

def make_env(**options):
    return options

a_number = 3
"""

HOSTILE = "raise SystemExit('the hostile module was imported')"


class Site:
    """A folder of installed distributions that exist only for a test."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def install(
        self,
        distribution: str,
        module: str,
        source: str,
        version: str = "1.2",
        requires: Sequence[str] = (),
        **groups: str,
    ) -> None:
        """Install a distribution whose groups hold lines such as ``fine = module:Fine``."""
        (self.root / f"{module}.py").write_text(source)
        folder = self.root / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            + "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        )
        text = "".join(f"[rl_core.{group}]\n{lines}\n" for group, lines in groups.items())
        (folder / "entry_points.txt").write_text(text)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv(plugins.ALLOW_VARIABLE, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    plugins.set_allowed(None)
    for name in set(sys.modules) - before:
        if name.startswith("planted"):
            del sys.modules[name]


@pytest.fixture
def good(site: Site) -> Site:
    site.install(
        "rl-good",
        "planted_good",
        GOOD,
        loggers="fine = planted_good:Fine\nwrong = planted_good:Wrong\nnum = planted_good:a_number",
        envs="made = planted_good:make_env\nwrong = planted_good:Wrong",
        executors="any = planted_good:Wrong\nnum = planted_good:a_number",
    )
    return site


def refused(kind: str, name: str, *words: str) -> None:
    with pytest.raises(PluginError) as caught:
        plugins.load(kind, name)
    for word in words:
        assert word in str(caught.value)


def test_listing_names_distribution_and_version_without_importing(good: Site) -> None:
    before = set(sys.modules)
    listed = plugins.available("loggers")
    assert listed["fine"] == plugins.PluginInfo(
        "loggers", "fine", "rl-good", "1.2", "planted_good:Fine"
    )
    assert list(listed) == sorted(listed)
    for kind in plugins.KINDS:
        plugins.available(kind)
    assert not [name for name in set(sys.modules) - before if name.startswith("planted")]


def test_loading_imports_the_one_that_was_asked_for(good: Site) -> None:
    good.install("rl-hostile", "planted_hostile", HOSTILE, loggers="evil = planted_hostile:Evil")
    assert "evil" in plugins.available("loggers")
    loaded = plugins.load("loggers", "fine")
    assert isinstance(loaded, type)
    assert loaded.__name__ == "Fine"
    assert plugins.load("logger", "fine") is loaded
    assert "planted_hostile" not in sys.modules
    refused("loggers", "fin", "no logger 'fin'; did you mean 'fine'?")
    assert "planted_hostile" not in sys.modules
    refused("loggers", "evil", "'evil' of rl-hostile 1.2", "SystemExit: the hostile module")


def test_errors_of_an_import_are_wrapped(site: Site) -> None:
    site.install(
        "rl-broken",
        "planted_broken",
        "import planted_missing",
        loggers="a = planted_broken:A\nb = planted_absent:B\nc = not a reference!",
    )
    site.install("rl-hollow", "planted_hollow", "", loggers="d = planted_hollow:D")
    refused("loggers", "a", "rl-broken 1.2", "planted_broken:A", "planted_missing", "reinstall")
    refused("loggers", "b", "No module named 'planted_absent'")
    refused("loggers", "c", "cannot be imported")
    refused("loggers", "d", "AttributeError")


def test_what_was_loaded_must_be_of_the_kind(good: Site) -> None:
    refused("loggers", "wrong", "rl-good", "planted_good:Wrong", "rl_core.logger.Logger")
    refused("loggers", "num", "is 3; expected a subclass")
    refused("envs", "wrong", "gymnasium.Env or rl_core.env.VecEnv, or a function")
    refused("executors", "num", "is 3")
    assert plugins.load("envs", "made")(x=1) == {"x": 1}
    assert plugins.load("executors", "any").__name__ == "Wrong"


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        ("algorithms", "rl_core.algorithm:Algorithm"),
        ("storages", "rl_core.storage:Storage"),
        ("actors", "rl_core.actor:Actor"),
        ("envs", "rl_core.env:VecEnv"),
        ("envs", "gymnasium:Env"),
    ],
)
def test_each_kind_has_its_base_class(site: Site, kind: str, base: str) -> None:
    module, _, name = base.partition(":")
    source = f"from {module} import {name}\nclass Right({name}): pass\nclass Wrong: pass\n"
    source += "Right.__abstractmethods__ = frozenset()\n"
    lines = "right = planted_kind:Right\nwrong = planted_kind:Wrong"
    site.install("rl-kind", "planted_kind", source, **{kind: lines})
    assert plugins.load(kind, "right").__name__ == "Right"
    refused(kind, "wrong", f"expected a subclass of {plugins._REQUIRED[kind][0].replace(':', '.')}")


def test_two_distributions_with_one_name_are_both_named(good: Site) -> None:
    good.install("rl-rival", "planted_rival", GOOD, loggers="fine = planted_rival:Fine")
    refused("loggers", "fine", "registered by rl-good and rl-rival", "uninstall one")
    assert plugins.available("loggers")["fine"].rivals == ("rl-rival",)
    assert "planted_good" not in sys.modules
    assert "planted_rival" not in sys.modules
    plugins.set_allowed(["rl-rival"])
    assert plugins.load("loggers", "fine").__module__ == "planted_rival"
    assert plugins.available("loggers")["fine"].rivals == ()


@pytest.mark.parametrize("listed", ["", "other", "rl-core, other-dist"])
def test_the_variable_refuses_what_it_does_not_list(
    good: Site, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    monkeypatch.setenv(plugins.ALLOW_VARIABLE, listed)
    assert plugins.available("loggers")["fine"].allowed is False
    refused("loggers", "fine", "'fine' of rl-good is installed but not allowed", "RL_PLUGINS")
    assert "planted_good" not in sys.modules


def test_the_variable_permits_what_it_lists(good: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.ALLOW_VARIABLE, "other, RL_Good")
    assert plugins.available("loggers")["fine"].allowed is True
    assert plugins.load("loggers", "fine").__name__ == "Fine"


def test_the_core_itself_is_always_allowed(site: Site) -> None:
    site.install("rl-core", "planted_core", GOOD, loggers="fine = planted_core:Fine")
    plugins.set_allowed([])
    assert plugins.load("loggers", "fine").__name__ == "Fine"


def test_set_allowed_replaces_the_variable(good: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.ALLOW_VARIABLE, "rl-good")
    plugins.set_allowed([])
    refused("loggers", "fine", "not allowed")
    plugins.set_allowed(None)
    assert plugins.load("loggers", "fine").__name__ == "Fine"


def test_a_folder_that_cannot_be_looked_at_has_no_plug_ins(
    good: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, **options: bool) -> os.stat_result:
        raise PermissionError(13, "Permission denied", str(self))

    expected = plugins.available("loggers")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refuse)
        assert plugins.available("loggers") == expected


def test_unknown_kinds_are_named(site: Site) -> None:
    with pytest.raises(PluginError, match="kind 'algoritms'; did you mean 'algorithms'"):
        plugins.available("algoritms")
    refused("algoritms", "ppo", "did you mean 'algorithms'")


def test_a_first_party_name_is_answered_with_the_install_line(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    monkeypatch.setattr(metadata, "version", nowhere)
    for kind, name, home in [
        ("algorithms", "sac", "rl-algos-offpolicy"),
        ("algorithms", "rnd-ppo", "rl-algos-onpolicy"),
        ("algorithms", "maml-trpo", "rl-meta"),
        ("storages", "task-replay", "rl-meta"),
        ("storages", "replay", "rl-storages"),
    ]:
        with pytest.raises(PluginError) as caught:
            plugins.load(kind, name)
        assert str(caught.value) == (
            f"`{name}` is in {home}, which is not installed; install it from a clone: "
            f"pip install ./packages/{home}"
        )


def test_only_what_is_installed_is_suggested(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    for name in ("sacc", "dreamer"):
        with pytest.raises(PluginError) as caught:
            plugins.load("algorithms", name)
        assert str(caught.value) == (
            f"there is no algorithm '{name}'; none is installed: a package registers its own, and "
            "in Python objects are given"
        )


def test_an_old_first_party_package_is_to_be_upgraded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    refused(
        "algorithms", "sac", "version 0.0.1 lacks it", "pip install ./packages/rl-algos-offpolicy"
    )


def test_a_class_that_lacks_methods_is_refused_with_their_names(site: Site) -> None:
    source = "from rl_core.logger import Logger\n\nclass Bare(Logger):\n    pass\n"
    site.install("rl-bare", "planted_bare", source, loggers="bare = planted_bare:Bare")
    with pytest.raises(PluginError, match=r"of rl-bare 1\.2 .* lacks log; add what"):
        plugins.load("logger", "bare")


@pytest.mark.parametrize(
    ("requirement", "needed"),
    [
        ("rl-core<0.1", "rl-core<0.1"),
        ("RL_Core (>=0.2,<0.3)", "RL_Core<0.3,>=0.2"),
        ("rl-core==0.0.*; python_version > '3'", "rl-core==0.0.*"),
        ("rl-core>=0.1,<0.2", None),
        ("rl-core<0.1; extra == 'old'", None),
        ("rl-core<0.1; python_version < '3'", None),
        ("rl-good>=9", None),
        ("rl-train>=0.1", None),
        ("rl core", None),
    ],
)
def test_a_plug_in_for_another_version_of_ours_is_refused(
    site: Site, requirement: str, needed: str | None
) -> None:
    version = f"1.{sum(requirement.encode())}"  # what a distribution requires is read once
    site.install(
        "rl-dated",
        "planted_dated",
        GOOD,
        version,
        ["torch>=2.10", requirement],
        loggers="fine = planted_dated:Fine",
    )
    assert "fine" in plugins.available("loggers")
    if needed is None:
        assert plugins.load("loggers", "fine").__name__ == "Fine"
        return
    installed = metadata.version("rl-core")
    refused(
        "loggers", "fine", f"logger 'fine' of rl-dated {version} needs {needed}, but", installed
    )
