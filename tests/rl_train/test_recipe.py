"""Recipes survive the way through TOML and JSON exactly, and refuse what is not a recipe."""

import copy
import errno
import json
import os
import pickle
import random
import string
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rl_core.config import ComponentSpec, Options, Recipe
from rl_core.errors import ConfigError
from rl_core.types import Json
from rl_train.recipe_files import (
    from_toml,
    load_recipe,
    load_tables,
    parse_tables,
    save_recipe,
    to_toml,
)


def make_recipe(**options: Json) -> Recipe:
    return Recipe(
        env=ComponentSpec("env", "CartPole-v1", {"num_envs": 8}),
        actor=ComponentSpec("actor", "on-policy", {"hidden_sizes": (64, 64)}),  # type: ignore[dict-item]  # as a user may
        algorithm=ComponentSpec("algorithm", "ppo", {"learning_rate": 2.5e-4, **options}),
        storage=ComponentSpec("storage", "rollout"),
        trainer={"total_steps": 100_000},
        seed=7,
        device="cpu",
        resolved={"compile": "off"},
    )


def refused(text: str, *words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_toml(text, "my.toml")
    assert str(caught.value).startswith("my.toml: ")
    for word in words:
        assert word in str(caught.value)


def test_the_file_is_flat_and_readable() -> None:
    assert (
        to_toml(make_recipe())
        == """\
format = 1
seed = 7
device = "cpu"

[env]
name = "CartPole-v1"
num_envs = 8

[algorithm]
name = "ppo"
learning_rate = 0.00025

[actor]
name = "on-policy"
hidden_sizes = [64, 64]

[storage]
name = "rollout"

[trainer]
total_steps = 100000

[resolved]
compile = "off"
"""
    )


def test_a_recipe_is_printed_with_one_option_in_a_line() -> None:
    lines = str(make_recipe()).splitlines()
    assert lines[:4] == ["format = 1", "seed = 7", "device = 'cpu'", "env.name = 'CartPole-v1'"]
    assert "actor.hidden_sizes = [64, 64]" in lines
    assert lines[-1] == "resolved.compile = 'off'"


def test_a_file_comes_back_equal(tmp_path: Path) -> None:
    recipe = make_recipe()
    path = tmp_path / "new" / "recipe.toml"
    save_recipe(recipe, path)
    save_recipe(replace(recipe, seed=8), str(path))
    assert load_recipe(str(path)) == replace(recipe, seed=8)
    assert [p.name for p in path.parent.iterdir()] == ["recipe.toml"]


@pytest.mark.parametrize("name", ["recipe.toml", "recipe.json"])
def test_a_recipe_that_could_not_be_read_back_is_not_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    save_recipe(make_recipe(long="x" * (2**20 - 2_000)), path)
    assert load_recipe(path).algorithm.kwargs["long"] == "x" * (2**20 - 2_000)
    with pytest.raises(ConfigError, match=r"the recipe would have \d+ bytes; expected at most"):
        save_recipe(make_recipe(long="ü" * (2**19)), path)
    assert load_recipe(path).algorithm.kwargs["long"] == "x" * (2**20 - 2_000)


def random_value(rng: random.Random, depth: int) -> Json:
    kinds = 7 if depth < 5 else 5
    kind = rng.randrange(kinds)
    if kind == 0:
        return rng.random() < 0.5
    if kind == 1:
        return rng.choice([0, -1, rng.randrange(-(2**63), 2**63)])
    if kind == 2:
        return rng.choice([0.0, -0.0, 1e-5, 1e300, 5e-324, rng.gauss(0, 1), rng.random() * 1e17])
    if kind in (3, 4):
        alphabet = string.printable + "äß漢\x00\x1f\x7f\"'\\#[]=,\u2028😀"
        return "".join(rng.choices(alphabet, k=rng.randrange(9)))
    size = rng.randrange(4)
    if kind == 5:
        return [random_value(rng, depth + 1) for _ in range(size)]
    keys = ["a", "b.c", "ü", "", '"', "x y", "1", "]\n"]
    return {rng.choice(keys): random_value(rng, depth + 1) for _ in range(size)}


def test_random_recipes_come_back_exactly() -> None:
    rng = random.Random(0)
    for _ in range(300):
        options = {f"option_{i}": random_value(rng, 2) for i in range(4)}
        recipe = replace(make_recipe(**options), trainer={"x": random_value(rng, 2)})
        again = from_toml(to_toml(recipe))
        assert again == recipe
        # Equality is not enough: 1 == 1.0 == True and 0.0 == -0.0.
        assert json.dumps(again.to_tables(), sort_keys=True) == json.dumps(
            recipe.to_tables(), sort_keys=True
        )
        assert to_toml(again) == to_toml(recipe)


def test_options_are_read_like_a_mapping() -> None:
    algorithm = make_recipe().algorithm
    assert algorithm["learning_rate"] == 2.5e-4
    assert algorithm.learning_rate == 2.5e-4
    with pytest.raises(AttributeError, match="'learning_rat'; did you mean 'learning_rate'"):
        _ = algorithm.learning_rat
    with pytest.raises(ConfigError, match="'learning_rat'; did you mean 'learning_rate'"):
        algorithm["learning_rat"]


def test_options_become_plain_data_of_their_own() -> None:
    sizes: list[Json] = [64]
    spec = ComponentSpec("actor", "on-policy", {"sizes": sizes, "limit": None})
    sizes.append(32)
    assert spec.kwargs == {"sizes": [64], "limit": "none"}
    assert hash(spec) == hash(ComponentSpec("actor", "on-policy"))


def test_a_component_given_as_an_object_is_recorded_as_custom() -> None:
    recipe = replace(make_recipe(), actor=ComponentSpec("actor", "custom"))
    assert recipe.actor.is_custom
    assert not recipe.algorithm.is_custom
    assert from_toml(to_toml(recipe)).actor.is_custom


def test_a_part_of_a_recipe_overrides_option_by_option() -> None:
    overrides = parse_tables(
        'seed = 1\n[algorithm]\nlearning_rate = 0.1\n[env]\nkwargs = {goal = 2}\n[trainer]\nx = "y"'
    )
    merged = make_recipe(gamma=0.9).merged(overrides)
    assert merged.seed == 1
    assert merged.device == "cpu"
    assert merged.algorithm.kwargs == {"learning_rate": 0.1, "gamma": 0.9}
    assert merged.env.kwargs == {"num_envs": 8, "kwargs": {"goal": 2}}
    assert merged.trainer == {"total_steps": 100_000, "x": "y"}
    again = merged.merged({"env": {"kwargs": {"size": 3}}})
    assert again.env["kwargs"] == {"goal": 2, "size": 3}


def test_another_component_starts_without_the_old_options() -> None:
    merged = make_recipe().merged({"algorithm": {"name": "sac", "tau": 0.01}})
    assert merged.algorithm == ComponentSpec("algorithm", "sac", {"tau": 0.01})
    same = make_recipe().merged({"algorithm": {"name": "ppo", "tau": 0.01}})
    assert same.algorithm.kwargs == {"learning_rate": 2.5e-4, "tau": 0.01}


def test_another_optimizer_starts_without_the_old_options() -> None:
    recipe = make_recipe(optimizer={"name": "adam", "eps": 1e-5})
    merged = recipe.merged({"algorithm": {"optimizer": {"name": "sgd"}}})
    assert merged.algorithm["optimizer"] == {"name": "sgd"}
    same = recipe.merged({"algorithm": {"optimizer": {"name": "adam", "beta1": 0.8}}})
    assert same.algorithm["optimizer"] == {"name": "adam", "eps": 1e-5, "beta1": 0.8}


def test_overrides_are_checked() -> None:
    with pytest.raises(ConfigError, match="unknown table 'algoritm'; did you mean 'algorithm'"):
        make_recipe().merged({"algoritm": {"tau": 0.01}})
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got 'x'"):
        make_recipe().merged({"seed": "x"})


def test_unknown_and_missing_parts_are_named() -> None:
    text = to_toml(make_recipe())
    refused(text + "[enviroment]\n", "unknown table 'enviroment'", "known: ")
    refused(text + "[storge]\n", "unknown table 'storge'", "did you mean 'storage'")
    refused("sed = 1\n" + text, "unknown key 'sed'", "did you mean 'seed'")
    refused(text.replace("[actor]", "[trainer.actor]"), "[actor] gives no name")
    refused(text.replace('name = "ppo"\n', ""), "[algorithm] gives no name")


def test_wrong_types_are_named() -> None:
    text = to_toml(make_recipe())
    refused(
        text.replace("seed = 7", 'seed = "7"'), "seed must be a whole number of at least 0, got '7'"
    )
    refused(
        text.replace("seed = 7", "seed = true"),
        "seed must be a whole number of at least 0, got True",
    )
    refused(
        text.replace("seed = 7", "seed = -1"), "seed must be a whole number of at least 0, got -1"
    )
    refused(text.replace('device = "cpu"', "device = 0"), "device: got 0")
    refused(text.replace('name = "ppo"', "name = 1"), "[algorithm] name: got '1'")
    refused("env = 3\n", "env: got 3", "[env]")
    refused(text.replace("num_envs = 8", "num_envs = 1979-05-27"), "env.num_envs", "date")
    for number in ("nan", "inf", "-inf"):
        refused(text.replace("num_envs = 8", f"num_envs = [{number}]"), "num_envs[0]", "finite")


def test_a_later_format_is_refused_by_name() -> None:
    text = to_toml(make_recipe())
    refused(text.replace("format = 1", "format = 2"), "format: got 2", "pip install --upgrade")
    refused(text.replace("format = 1", "format = 0"), "format: got 0")
    assert from_toml(text.replace("format = 1\n", "")).format == 1


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("env", "os:system"),
        ("env", "module:Env-v0"),
        ("env", "../../etc"),
        ("env", ""),
        ("env", "a b"),
        ("algorithm", "rl_algos.ppo"),
        ("algorithm", "module:PPO"),
        ("algorithm", "__import__('os')"),
        ("storage", "a/b"),
        ("actor", "x\n"),
        ("actor", "x" * 300),
    ],
)
def test_names_cannot_choose_code(kind: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[{kind}\] name: got"):
        ComponentSpec(kind, name)


@pytest.mark.parametrize("name", ["CartPole-v1", "ALE/Pong-v5", "phys2d/CartPole-v1", "a.b-v0"])
def test_environment_ids_are_names(name: str) -> None:
    assert ComponentSpec("env", name).name == name


def test_components_check_kind_and_reserved_key() -> None:
    with pytest.raises(ConfigError, match="component kind 'storages'; did you mean 'storage'"):
        ComponentSpec("storages", "replay")
    with pytest.raises(ConfigError, match="'name', which is reserved"):
        ComponentSpec("actor", "x", {"name": "y"})
    with pytest.raises(ConfigError, match="expected ComponentSpec"):
        replace(make_recipe(), actor=ComponentSpec("storage", "x"))
    with pytest.raises(ConfigError, match=r"\[actor\] x: got an object of type .*Path"):
        ComponentSpec("actor", "x", {"x": Path()})  # type: ignore[dict-item]  # the mistake
    with pytest.raises(ConfigError, match="not valid text"):
        ComponentSpec("actor", "x", {"x": "\ud800"})
    with pytest.raises(ConfigError, match="64 bits"):
        ComponentSpec("actor", "x", {"x": 2**63})


def test_nesting_is_limited_to_eight_levels() -> None:
    def nested(levels: int) -> str:
        text = to_toml(make_recipe())
        return text.replace("num_envs = 8", "num_envs = " + "[" * levels + "]" * levels)

    assert from_toml(nested(7))
    refused(nested(8), "nested deeper than 8 levels")


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 500_000,
        "x = " + "{a=" * 200_000,
        ".".join("a" * 400_000) + " = 1",
        "[" + ".".join("a" * 400_000) + "]",
        'x = """a""""" # "\n' + " . ".join('""' * 100_000) + " = 1",
        "seed = " + "9" * 900_000,
        "seed = 0x" + "f" * 900_000,
        "x" * 2_000_000,
    ],
)
def test_hostile_files_are_refused_quickly(text: str) -> None:
    start = time.process_time()
    refused(text)
    assert time.process_time() - start < 2.0


def test_dots_in_texts_and_numbers_are_no_keys() -> None:
    text = to_toml(make_recipe()).replace('"off"', '"a.b.c.d.e.f.g.h.i.j.k" # ... ... ...')
    text += (
        "[actor.more]\nx = '''\na.b.c.d.e.f.g.h.i.j.k = 1'''\n"
        "y = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]\n"
    )
    more = from_toml(text).actor["more"]
    assert isinstance(more, dict)
    assert more["x"] == "a.b.c.d.e.f.g.h.i.j.k = 1"


def test_an_unknown_resolved_setting_is_refused() -> None:
    text = to_toml(make_recipe()) + "total_step = 5\n"
    with pytest.raises(ConfigError, match=r"resolved\.total_step: .*did you mean 'total_steps'"):
        from_toml(text)


def test_a_device_file_is_no_recipe() -> None:
    with pytest.raises(ConfigError, match="/dev/null: it is not a regular file; expected a recipe"):
        load_tables(Path("/dev/null"))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    with pytest.raises(ConfigError, match=r"none\.toml: it is missing"):
        load_recipe(missing)
    with pytest.raises(ConfigError, match="a directory"):
        load_recipe(tmp_path)
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match=r"large\.toml: it has 1048577 bytes"):
        load_tables(large)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"binary\.toml: it is not UTF-8"):
        load_recipe(binary)
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = \n")
    with pytest.raises(ConfigError, match=r"broken\.toml: not valid TOML.*line 1"):
        load_recipe(broken)
    marked = tmp_path / "marked.toml"
    marked.write_text("seed = 3\n", encoding="utf-8-sig")
    assert load_tables(marked) == {"seed": 3}


def test_a_json_file_comes_back_equal(tmp_path: Path) -> None:
    recipe = make_recipe(bound=None, scale=1e-5, text="ä\x7f\U0001f600")
    save_recipe(recipe, tmp_path / "recipe.json")
    assert json.loads((tmp_path / "recipe.json").read_text()) == recipe.to_tables()
    assert load_recipe(tmp_path / "recipe.json") == recipe
    save_recipe(recipe, tmp_path / "recipe.JSON")
    assert load_recipe(tmp_path / "recipe.JSON") == recipe


def test_json_is_read_as_toml_is() -> None:
    text = '{"algorithm": {"gamma": 0.9, "bound": null}, "actor": {"body": [{"func": "Tanh"}]}}'
    merged = make_recipe().merged(parse_tables(text, syntax="JSON"))
    same = 'algorithm = {gamma = 0.9, bound = "none"}\nactor = {body = [{func = "Tanh"}]}'
    assert merged == make_recipe().merged(parse_tables(same))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"seed": }', ["not valid JSON (Expecting value: line 1 column 10 (char 9))"]),
        (
            '{\n "env": {"a": 1,\n "a": 2}}',
            ["not valid JSON", "the key 'a' is there twice"],
        ),
        ('{"env": {"a": [{"\\u0062": 1}, {"b": {"b": 1}, "b": 2}]}}', ["'b' is there twice"]),
        ("seed = 1", ["not valid JSON", "; TOML is read from files whose names end in .toml"]),
        ("[1]", ["my.json: got list as a whole; expected an object"]),
        ('{"sed": 1}', ["unknown key 'sed'; did you mean 'seed'"]),
        ('{"env": {"x": NaN}}', ["env.x: got nan; expected a finite number"]),
        ('{"env": {"x": [1e999]}}', ["env.x[0]: got inf; expected a finite number"]),
        ('{"env": {"x": 9223372036854775808}}', ["more than 64 bits"]),
        ('{"env": {"x": "\\ud800"}}', ["not valid text"]),
        ('{"env": {"x": ' + "[" * 8 + "]" * 8 + "}}", ["nested deeper than 8 levels"]),
        ('{"x": ' + "[" * 500_000, ["not valid JSON (maximum recursion depth"]),
        ('{"x": ' + "9" * 900_000 + "}", ["not valid JSON"]),
        ('{"x": "' + '\\"{' * 300_000 + '"}', ["unknown key 'x'"]),
    ],
)
def test_what_is_no_recipe_in_json_is_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "my.json"
    path.write_text(text)
    start = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_tables(path)
    assert time.process_time() - start < 2.0
    assert str(caught.value).startswith(f"{path}: ")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["my.yaml", "my.YML"])
def test_yaml_is_told_what_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("algorithm:\n  name: ppo\n")
    with pytest.raises(ConfigError, match=r"YAML is not read; expected TOML, or JSON in a file"):
        load_tables(tmp_path / name)


def test_json_under_another_name_is_told_how_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('{"seed": 1}')
    with pytest.raises(ConfigError, match=r"not valid TOML .*; JSON is read from files .*\.json$"):
        load_tables(tmp_path / "my.toml")


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recipe.toml"
    save_recipe(make_recipe(), path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ConfigError, match=r"recipe\.toml could not be written: No space left"):
            save_recipe(replace(make_recipe(), seed=9), path)
    assert load_recipe(path).seed == 7
    assert [p.name for p in tmp_path.iterdir()] == ["recipe.toml"]


def test_reading_a_recipe_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    text = to_toml(make_recipe(kind="planted", target="planted:main", _target_="planted.main"))
    text = text.replace('"ppo"', '"planted"')
    before = set(sys.modules)
    assert from_toml(text).algorithm.name == "planted"
    assert set(sys.modules) == before


def test_options_are_attributes_however_deep() -> None:
    recipe = from_toml(to_toml(make_recipe()))
    options: dict[str, Json] = {"optimizer": {"name": "adam", "eps": 1e-5}, "items": 3}
    algorithm = ComponentSpec("algorithm", "ppo", options)
    recipe = replace(recipe, algorithm=algorithm, trainer={"compile": "off"})
    assert recipe.algorithm.optimizer.eps == 1e-5
    trainer = recipe.trainer
    assert isinstance(trainer, Options)
    assert trainer.compile == "off"
    assert recipe.algorithm.kwargs["items"] == 3
    assert copy.deepcopy(recipe) == recipe
    assert pickle.loads(pickle.dumps(recipe.trainer)) == {"compile": "off"}
    with pytest.raises(AttributeError, match=r"\[algorithm\.optimizer\] gives no option 'epss'"):
        _ = recipe.algorithm.optimizer.epss
    with pytest.raises(AttributeError, match=r"\[trainer\] gives no option 'compil'.*'compile'"):
        _ = trainer.compil
