"""Checkpoints come back bit by bit, whatever interrupts their writing, and nothing else loads."""

import builtins
import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import rl_core
import rl_train
from rl_core.config import ComponentSpec, Recipe
from rl_core.errors import CheckpointError, ConfigError
from rl_core.types import Json, StateDict, StateValue
from rl_testing.stateful import check_same_state
from rl_train.checkpoint import (
    Checkpoint,
    _durable,
    _manifest,
    checkpoints,
    clean_temporary,
    latest_checkpoint,
    list_checkpoints,
    load_checkpoint,
    prune_checkpoints,
    read_run,
    save_checkpoint,
    set_aside_checkpoint,
    state_digest,
    verify_checkpoint,
)
from rl_train.checkpoint._tensor_file import read_safetensors
from rl_train.recipe_files import from_toml

RECIPE = Recipe(
    env=ComponentSpec("env", "CartPole-v1"),
    actor=ComponentSpec("actor", "on-policy"),
    algorithm=ComponentSpec("algorithm", "ppo"),
    storage=ComponentSpec("storage", "rollout"),
)

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


def small_state(step: int = 1) -> dict[str, object]:
    return {"weights": torch.arange(4.0) * step, "step": step, "rate": 0.1}


def save(directory: Path, step: int = 1, state: object = None) -> Path:
    chosen: StateDict = small_state(step) if state is None else state  # type: ignore[assignment]  # tests save mistakes too
    return save_checkpoint(directory, step, chosen, recipe=RECIPE, metadata={"note": "x"})


def refused(path: Path, *words: str) -> None:
    """Expect one error, quickly, that names a file of the checkpoint and what to do."""
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    assert time.process_time() - start < 1.0
    message = str(caught.value)
    assert str(path) in message
    assert "resume from an earlier checkpoint" in message or "pip install --upgrade" in message
    for word in words:
        assert word in message


def reseal(path: Path, **changes: Json) -> None:
    """Rewrite the manifest with true sizes and digests, as an attacker would."""
    facts = json.loads((path / "manifest.json").read_text())["manifest"]
    for name in facts["files"]:
        raw = (path / name).read_bytes()
        facts["files"][name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    facts.update(changes)
    (path / "manifest.json").write_bytes(_manifest.manifest_bytes(facts))


# What comes back


def test_every_kind_of_value_comes_back_exactly(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state: dict[str, object] = {
        "dtypes": {
            str(dtype): torch.randint(0, 2, (3, 2), generator=torch.Generator()).to(dtype)
            for dtype in DTYPES
        },
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "empty_bool": torch.zeros(0, dtype=torch.bool),
        "special": torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324]),
        "transposed": base.t(),
        "strided": base[:, ::2],
        "expanded": torch.tensor([1.0]).expand(5),
        "expanded to one": torch.tensor(1.0).expand(1),
        "shared": [base, base[1:], base],
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "floats": [0.1, 1e-320, -0.0, math.nan, math.inf, -math.inf, 1e308, 3.0],
        "ints": [0, -1, 2**63 - 1, 2**63, -(2**64), 10**6000],
        "texts": ["", "ü😀", '\x00\x1f\n"\\', "\ud800", "$tensor", "nan"],
        "others": [True, False, None],
        "nested": [[], {}, (), [(1, [2])], {"a": {"b": {}}}],
        "x/y": torch.ones(1),
        "x~1y": torch.zeros(1),
        "": {"/": 1, "~": 2, "a/b": {"~1": torch.ones(1)}, "a": {"b/~1": torch.zeros(1)}},
        "$tensor": "/scalar",
        "$$x": {"$tuple": [1]},
        "tuple": (1, (2.0, torch.ones(1))),
        "ünï": torch.ones(1),
        "__metadata__": torch.ones(1),
    }
    path = save(tmp_path, 3, state)
    loaded = load_checkpoint(path)
    assert state_digest(loaded.state) == state_digest(state)  # type: ignore[arg-type]  # not every value is typed
    again = loaded.state
    assert list(again) == list(state)
    assert repr(again["floats"]) == repr(state["floats"])
    for name in ("ints", "texts", "others", "nested", "$tensor", "$$x"):
        assert again[name] == state[name]
    assert isinstance(again["tuple"], tuple)
    # Compared by hand, because a digest sees no difference where two names became one.
    assert again["x/y"] == torch.ones(1)
    assert again["x~1y"] == torch.zeros(1)
    special, transposed = again["special"], again["transposed"]
    assert isinstance(special, torch.Tensor)
    assert torch.equal(special.view(torch.int32), state["special"].view(torch.int32))  # type: ignore[attr-defined]  # a tensor
    assert isinstance(transposed, torch.Tensor)
    assert torch.equal(transposed, base.t())
    dtypes = again["dtypes"]
    assert isinstance(dtypes, dict)
    assert [tensor.dtype for tensor in dtypes.values()] == DTYPES


def test_the_rest_of_a_checkpoint_comes_back(tmp_path: Path) -> None:
    metadata: dict[str, Json] = {"return": math.nan, "plugins": {"ppo": "1.0"}, "list": [1, None]}
    path = save_checkpoint(
        tmp_path / "new" / "checkpoints",
        7,
        {},
        recipe=RECIPE,
        metadata=metadata,
        resume_grade="exact",
    )
    assert path == tmp_path / "new" / "checkpoints" / "step-7"
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.path, loaded.resume_grade) == (7, path, "exact")
    assert loaded.state == {}
    assert math.isnan(loaded.metadata["return"])  # type: ignore[arg-type]  # a float
    assert {**loaded.metadata, "return": 0} == {**metadata, "return": 0}
    assert loaded.recipe_text is not None
    assert from_toml(loaded.recipe_text) == RECIPE
    assert {"python", "torch", "numpy", "safetensors"} <= set(loaded.versions)
    assert sorted(file.name for file in path.iterdir()) == [
        "manifest.json",
        "recipe.toml",
        "state.json",
        "tensors.safetensors",
    ]


def test_a_checkpoint_without_a_recipe(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 0, {"x": 1}, recipe=None, metadata={})
    assert load_checkpoint(path).recipe_text is None


def test_loaded_tensors_do_not_depend_on_the_files_or_each_other(tmp_path: Path) -> None:
    base = torch.zeros(3)
    path = save(tmp_path, 1, {"a": base, "b": base})
    state = load_checkpoint(path).state
    a, b = state["a"], state["b"]
    assert isinstance(a, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    a += 1
    again = load_checkpoint(path).state["a"]
    assert isinstance(again, torch.Tensor)
    shutil.rmtree(path)
    save(tmp_path, 1, {"a": torch.full((3,), 7.0), "b": torch.full((3,), 7.0)})
    assert again.tolist() == [0, 0, 0]
    assert a.tolist() == [1, 1, 1]
    assert b.tolist() == [0, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what memory is taken")
def test_what_is_not_looked_at_takes_no_memory(tmp_path: Path) -> None:
    """A replay buffer larger than the memory is in the way of nobody who wants the weights."""
    large = torch.arange(4_000_000)
    path = save(tmp_path, 1, {"large": large, "weight": torch.ones(3)})
    before = anonymous_bytes()
    state = load_checkpoint(path).state
    weight, loaded = state["weight"], state["large"]
    assert isinstance(weight, torch.Tensor)
    assert isinstance(loaded, torch.Tensor)
    assert weight.tolist() == [1, 1, 1]
    assert torch.equal(loaded, large)
    assert anonymous_bytes() - before < large.nbytes // 8
    mapped = Path("/proc/self/maps").read_text()
    assert f"{path / 'tensors.safetensors'}\n" in mapped


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reserve what is mapped")
def test_a_file_larger_than_the_memory_is_read(tmp_path: Path) -> None:
    size = 2**42
    header = {"/large": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = tmp_path / "tensors.safetensors"
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"\1")
        try:
            file.truncate(8 + len(text) + size)
        except OSError:
            pytest.skip("this disk takes no file of 4 TB, not even an empty one")
    large = read_safetensors(path)["/large"]
    assert large[:2].tolist() == [1, 0]
    assert len(large) == size


def anonymous_bytes() -> int:
    """Return how much memory is held that no file stands for."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(rollup.split("Anonymous:")[1].split()[0])


def test_the_tensor_file_is_plain_safetensors(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"layer": {"weight": torch.eye(2), "flag": torch.tensor(True)}})
    read = load_file(path / "tensors.safetensors")
    assert torch.equal(read["/layer/weight"], torch.eye(2))
    save_file(read, tmp_path / "again")
    raw, again = ((p).read_bytes() for p in (path / "tensors.safetensors", tmp_path / "again"))
    assert (
        raw[8 + int.from_bytes(raw[:8], "little") :]
        == again[8 + int.from_bytes(again[:8], "little") :]
    )


def test_tensors_begin_where_their_numbers_may(tmp_path: Path) -> None:
    for length in range(1, 9):  # of the name, which changes where the header ends
        state = {"x" * length: torch.ones(3, dtype=torch.float64), "flag": torch.tensor(True)}
        read = read_safetensors(save(tmp_path, length, state) / "tensors.safetensors")
        assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in read.values())


# The digest of a state


def test_the_digest_ignores_the_order_of_keys_only() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    assert state_digest({"a": a, "b": {"x": 1, "y": b}}) == state_digest(
        {"b": {"y": b.clone(), "x": 1}, "a": a.clone()}
    )
    states: list[StateDict] = [
        {"a": a},
        {"a": b},
        {"b": a},
        {"a": a.double()},
        {"a": a.reshape(2, 1)},
        {"a": [1, 1]},
        {"a": 1},
        {"a": 1.0},
        {"a": True},
        {"a": "1"},
        {"a": None},
        {"a": 0.0},
        {"a": -0.0},
        {"a": math.nan},
        {"a": "nan"},
        {"a": (1, 1)},
        {"a": [[1], 1]},
        {"a": {"0": 1}},
        {"a": torch.tensor(0.0)},
        {"a": torch.tensor(-0.0)},
        {"a": torch.zeros(0)},
        {"a": torch.zeros(0, 2)},
        {},
    ]
    assert len({state_digest(state) for state in states}) == len(states)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.str_("a"), "a")],
)
def test_numbers_of_numpy_are_saved_as_those_of_python(
    tmp_path: Path, number: Any, expected: object
) -> None:
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"a": [number]}, recipe=RECIPE))
    (value,) = cast("list[Any]", loaded.state["a"])
    assert (value, type(value)) == (expected, type(expected))


def test_arrays_of_numpy_come_back_as_such(tmp_path: Path) -> None:
    fixed = np.arange(3)
    fixed.flags.writeable = False
    numbers = np.array([[1.5, np.nan]], np.float32)
    arrays: list[StateValue] = [numbers, np.arange(6)[::-2], np.array([True]), np.zeros((0, 2))]
    state: StateDict = {"a": [*arrays, fixed, np.array(2, np.uint16)]}
    path = save_checkpoint(tmp_path, 1, state, recipe=RECIPE)
    loaded = load_checkpoint(path).state
    check_same_state(loaded, state)
    assert state_digest(loaded) == state_digest(state)
    assert state_digest({"a": np.zeros(2)}) != state_digest({"a": torch.zeros(2).double()})
    (values,) = cast("Any", loaded).values()
    values[0][0, 0] = 2.0  # what is loaded may be changed
    check_same_state(load_checkpoint(path).state, state)


# What cannot be saved


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"a": {"b": [object()]}}, ["builtins.object", "/a/b/0"]),
        ({"a": np.array([object()])}, ["an array of object at /a"]),
        ({"a": np.zeros(2, dtype=np.complex64)}, ["complex64", "float32"]),
        ({"a": b"bytes"}, ["bytes", "/a"]),
        ({"a": {1, 2}}, ["set"]),
        ({1: 2}, ["key 1", "text keys"]),
        ({"\ud800": 2}, ["not valid text"]),
        ({"a": torch.zeros(2).to_sparse()}, ["sparse", "/a"]),
        ({"a": torch.zeros(2, device="meta")}, ["meta", "/a"]),
        ({"a": torch.zeros(2, dtype=torch.complex64)}, ["complex64", "float32"]),
        ({"a": list(range(2_100_000))}, ["state.json", "keep long lists as tensors"]),
        ({"a": "x" * (17 * 2**20)}, ["state.json", "expected at most"]),
    ],
)
def test_what_cannot_be_stored_is_named_and_nothing_is_written(
    tmp_path: Path, state: object, words: Sequence[str]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, 1, state)
    for word in words:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("empty", [[], {}])
def test_lists_and_mappings_count_as_values_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty: object
) -> None:
    monkeypatch.setattr(_manifest, "_MAX_JSON_NODES", 12)
    with pytest.raises(CheckpointError, match=r"state\.json would have .* keep long lists"):
        save(tmp_path, 1, {"a": [empty] * 8})


def test_endless_and_deep_states_are_refused(tmp_path: Path) -> None:
    endless: dict[str, object] = {}
    endless["again"] = endless
    with pytest.raises(CheckpointError, match="deeper than 64"):
        save(tmp_path, 1, endless)
    with pytest.raises(CheckpointError, match="metadata holds a tensor"):
        save_checkpoint(tmp_path, 1, {}, recipe=None, metadata={"a": torch.ones(1)})  # type: ignore[dict-item]  # the mistake


def test_a_recipe_that_could_not_be_read_back_is_refused(tmp_path: Path) -> None:
    long = dataclasses.replace(
        RECIPE, env=ComponentSpec("env", "Maze", {"walls": list(range(200_000))})
    )
    with pytest.raises(ConfigError, match=r"the recipe would have \d+ bytes; expected at most"):
        save_checkpoint(tmp_path / "checkpoints", 1, {}, recipe=long)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-1, True, 10**18])
def test_steps_out_of_range_are_refused(tmp_path: Path, step: int) -> None:
    with pytest.raises(CheckpointError, match="got step"):
        save_checkpoint(tmp_path, step, {}, recipe=None, metadata={})


def test_an_existing_step_is_never_overwritten(tmp_path: Path) -> None:
    path = save(tmp_path, 5)
    digest = state_digest(load_checkpoint(path).state)
    with pytest.raises(CheckpointError, match="step-5 exists already"):
        save(tmp_path, 5, {"other": 1})
    assert state_digest(load_checkpoint(path).state) == digest
    (tmp_path / "step-6").mkdir()
    with pytest.raises(CheckpointError, match="step-6 exists already"):
        save(tmp_path, 6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-5", "step-6"]


# Damage


def test_every_flipped_bit_and_truncation_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    rng = random.Random(0)
    for file in sorted(path.iterdir()):
        raw = file.read_bytes()
        stride = 1 if file.name == "manifest.json" else 5  # only the manifest seals itself
        for position in range(0, len(raw), stride):
            flipped = bytearray(raw)
            flipped[position] ^= 1 << rng.randrange(8)
            file.write_bytes(flipped)
            refused(path, file.name)
        for length in {0, 1, len(raw) // 2, len(raw) - 1}:
            file.write_bytes(raw[:length])
            refused(path, file.name)
        file.write_bytes(raw + b" ")
        refused(path, file.name)
        file.write_bytes(raw)
    load_checkpoint(path)


@pytest.mark.parametrize(
    "name", ["manifest.json", "state.json", "tensors.safetensors", "recipe.toml"]
)
def test_files_that_are_missing_or_no_files_are_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 1)
    raw = (path / name).read_bytes()
    (path / name).unlink()
    refused(path, name, "is missing")
    (path / name).mkdir()
    refused(path, name, "is not a regular file")
    (path / name).rmdir()
    (tmp_path / "elsewhere").write_bytes(raw)
    (path / name).symlink_to(tmp_path / "elsewhere")
    refused(path, name, "is not a regular file")
    (path / name).unlink()
    os.mkfifo(path / name)
    refused(path, name, "is not a regular file")


def test_a_run_is_read_from_its_folder_from_best_or_from_one_checkpoint(tmp_path: Path) -> None:
    paths = [save(tmp_path / "checkpoints", step) for step in (1, 2)]
    best = save(tmp_path / "best", 1)
    assert read_run(tmp_path).path == paths[1]
    assert read_run(str(tmp_path / "best")).path == best
    assert read_run(paths[0]).path == paths[0]


def test_what_is_no_run_is_refused_with_the_runs_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "group" / "seed-2" / "checkpoints").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"one of the runs in it, such as .*group/seed-2$"):
        read_run(tmp_path / "group")
    (tmp_path / "notes").touch()
    with pytest.raises(CheckpointError, match=r"notes is not a run: it is not a directory$"):
        read_run(tmp_path / "notes")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=f"it is not a directory in {tmp_path}$"):
        read_run("elsewhere")


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="step-9 is not a directory; expected a checkpoint"):
        load_checkpoint(tmp_path / "step-9")


def test_a_later_format_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    reseal(path, format=2)
    refused(path, "has format 2", "pip install --upgrade rl-train")


def test_a_renamed_directory_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    path.rename(tmp_path / "step-2")
    refused(tmp_path / "step-2", "manifest.json", "is of step 1")
    (tmp_path / "step-2").rename(tmp_path / "best")
    assert load_checkpoint(tmp_path / "best").step == 1


RECORD: Json = {"size": 1, "sha256": "00"}


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../../outside": RECORD, "state.json": RECORD, "tensors.safetensors": RECORD}},
        {"files": {"/etc/passwd": RECORD, "state.json": RECORD, "tensors.safetensors": RECORD}},
        {"files": {"state.json": RECORD}},
        {"files": {"state.json": 1, "tensors.safetensors": RECORD}},
        {"files": {"state.json": {"size": 1}, "tensors.safetensors": RECORD}},
        {"files": {"state.json": {"size": True, "sha256": 1}, "tensors.safetensors": RECORD}},
        {"files": []},
        {"step": "1"},
        {"step": True},
        {"step": -1},
        {"resume_grade": "total"},
        {"resume_grade": ["exact"]},
        {"versions": "1"},
        {"metadata": []},
        {"metadata": {"$tensor": "/x"}},
        {"format": 0},
        {"format": "1"},
        {"format": None},
    ],
)
def test_forged_manifests_are_refused(tmp_path: Path, changes: dict[str, Json]) -> None:
    path = save(tmp_path, 1)
    reseal(path, **changes)
    refused(path, "manifest.json")


@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 400_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"format": 1, "state": ' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
        b'{"manifest": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
        b"[" + b"[]," * 1_000_000 + b"[]]",
        b'{"format": 1, "state": {"weights": {"$tensor": "/weights"}, "a": NaN}}',
        b'{"format": 1, "state": {"weights": {"$tensor": "/weights"}, "a": '
        + b"[" * 200
        + b"]" * 200
        + b"}}",
        b'{"format": 1, "state": {"weights": {"$tensor": "/weights"}, "a": ['
        + b"0," * 2_100_000
        + b"0]}}",
        b'{"format": 1, "state": ' + b"9" * 9_999 + b"}",
        b'{"format": 2, "state": {}}',
        b'{"format": 1, "state": []}',
        b'{"format": 1}',
        b"null",
        b"",
        b"\xff\xfe",
        pickle.dumps({"format": 1}),
    ],
)
def test_hostile_json_is_refused_quickly(tmp_path: Path, name: str, raw: bytes) -> None:
    path = save(tmp_path, 1)
    if name == "manifest.json":
        (path / name).write_bytes(raw)
    else:
        (path / name).write_bytes(raw)
        reseal(path)
    refused(path, name)


@pytest.mark.parametrize(
    "state",
    [
        {"$tensor": "/weights"},
        {"weights": {"$tensor": "/other"}},
        {"weights": {"$tensor": "/weights"}, "x": {"$tensor": "/weights"}},
        {"weights": {"$tensor": 3}},
        {},
        {"weights": {"$tensor": "/weights"}, "x": {"$float": "1.0"}},
        {"weights": {"$tensor": "/weights"}, "x": {"$int": "zz"}},
        {"weights": {"$tensor": "/weights"}, "x": {"$int": 1}},
        {"weights": {"$tensor": "/weights"}, "x": {"$tuple": 1}},
        {"weights": {"$tensor": "/weights"}, "x": {"$object": "os.system"}},
        {"weights": {"$tensor": "/weights"}, "x": {"$a": 1, "b": 2}},
    ],
)
def test_forged_placeholders_are_refused(tmp_path: Path, state: Json) -> None:
    path = save(tmp_path, 1)
    (path / "state.json").write_text(json.dumps({"format": 1, "state": state}))
    reseal(path)
    refused(path, "state.json")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff" * 64,
        (2**60).to_bytes(8, "little") + b"{}",
        (90 * 2**20).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        pickle.dumps(small_state()),
        b"PK\x03\x04" + b"\0" * 64,
        b'\x50\0\0\0\0\0\0\0{"/weights":{"dtype":"F32","shape":[1000000000000],"data_'
        b'offsets":[0,16]}}  ' + b"\0" * 16,
    ],
)
def test_hostile_tensor_files_are_refused_quickly(tmp_path: Path, raw: bytes) -> None:
    path = save(tmp_path, 1)
    (path / "tensors.safetensors").write_bytes(raw)
    reseal(path)
    refused(path, "tensors.safetensors")


def test_large_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    with (path / "manifest.json").open("r+b") as file:
        file.truncate(2**40)  # sparse: it takes no room
    refused(path, "manifest.json", "expected at most")
    path = save(tmp_path, 2)
    with (path / "state.json").open("r+b") as file:
        file.truncate(2**40)
    refused(path, "state.json", "its manifest says")


def test_a_recipe_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "recipe.toml").write_bytes(b"\xff")
    reseal(path)
    refused(path, "recipe.toml", "UTF-8")


# Choosing the newest


def test_the_newest_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "absent") is None
    for step in (9, 100, 20):
        save(tmp_path, step)
    names = [
        "step-007",
        "step-x",
        "step-999.bak",
        ".tmp-" + "0" * 32,
        "step-",
        "step-\u0663",
        "best",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "step-500").write_text("a file")
    shutil.copytree(tmp_path / "step-100", tmp_path / (".tmp-" + "1" * 32))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-9", "step-20", "step-100"]
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    assert (latest.step, latest.skipped) == (100, ())


def test_a_damaged_newest_falls_back_and_says_so(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / "step-3" / "state.json").unlink()
    (tmp_path / "step-2" / "tensors.safetensors").write_bytes(b"x")
    with pytest.warns(UserWarning, match="is damaged, so step-1 is used") as told:
        latest = latest_checkpoint(tmp_path)
    assert [str(warning.message)[:6] for warning in told] == ["step-3", "step-2"]
    assert latest is not None
    assert latest.step == 1
    assert [skipped.path.name for skipped in latest.skipped] == ["step-3", "step-2"]
    assert "state.json is missing" in latest.skipped[0].reason
    aside = [set_aside_checkpoint(skipped.path) for skipped in latest.skipped]
    assert all(path.is_dir() for path in aside)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-1"]
    save(tmp_path, 2)
    clean_temporary(tmp_path)
    assert all(path.is_dir() for path in aside)


def test_one_that_is_replaced_stays_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ({"weights": torch.full((3,), value)} for value in (1.0, 2.0))
    save(tmp_path, state=old)

    def refuse(directory: Path) -> None:
        if directory == tmp_path:  # the new one has taken the name
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "sync_directory", refuse)
        with pytest.raises(CheckpointError, match="could not be written: No space left"):
            save_checkpoint(tmp_path, 1, new, replaces=True)
    for state in (old, new):
        check_same_state(load_checkpoint(tmp_path / "step-1").state, state)
        save_checkpoint(tmp_path, 1, new, replaces=True)
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_run_never_silently_starts_from_scratch(tmp_path: Path) -> None:
    for step in (1, 2):
        shutil.rmtree(save(tmp_path, step) / "x", ignore_errors=True)
        (tmp_path / f"step-{step}" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints.*step-2/manifest\.json"):
        latest_checkpoint(tmp_path)


# Tidying up


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    save(tmp_path, 1)
    target = tmp_path / "precious"
    target.mkdir()
    (target / "file").touch()
    for name in (".tmp-mine", ".tmp-" + "g" * 32, "tmp-" + "0" * 32, ".tmp-" + "0" * 33):
        (tmp_path / name).mkdir()
    (tmp_path / (".tmp-" + "0" * 32)).mkdir()
    (tmp_path / (".tmp-" + "0" * 32) / "file").touch()
    (tmp_path / (".tmp-" + "1" * 32)).touch()
    (tmp_path / (".tmp-" + "2" * 32)).symlink_to(target)
    clean_temporary(tmp_path)
    assert not any((tmp_path / (".tmp-" + digit * 32)).exists() for digit in "012")
    assert (target / "file").exists()
    assert len(list(tmp_path.iterdir())) == 6
    clean_temporary(tmp_path / "absent")


def test_pruning_keeps_the_newest_and_the_protected(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in range(6)]
    other_name = tmp_path / "step-5" / ".."
    prune_checkpoints(other_name, keep=2, protect=[paths[1]])
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-1", "step-4", "step-5"]
    assert len(list(tmp_path.iterdir())) == 3
    prune_checkpoints(tmp_path, keep=9)
    assert len(list_checkpoints(tmp_path)) == 3


def test_nothing_is_pruned_unless_the_newest_verifies(tmp_path: Path) -> None:
    for step in range(3):
        save(tmp_path, step)
    (tmp_path / "step-2" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"state\.json"):
        prune_checkpoints(tmp_path, keep=1)
    assert len(list_checkpoints(tmp_path)) == 3


# Interruptions


class Killed(BaseException):
    """Stands for the end of the process or of the power."""


class Disk:
    """Watches the file system below a folder, and fails at one chosen operation.

    It remembers which contents and which names were flushed, so that `lose_power` can undo what
    was not. After a kill every further operation is refused too, as no code runs any more.
    """

    def __init__(self, root: Path, fail_at: int | None, error: OSError | None) -> None:
        self.root = root
        self.fail_at = fail_at
        self.error = error
        self.count = 0
        self.dead = False
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        for folder in [root, *(p for p in root.rglob("*") if p.is_dir())]:
            self.names[folder.stat().st_ino] = self.listing(folder)
        for file in root.rglob("*"):
            if file.is_file():
                self.contents[file.stat().st_ino] = file.read_bytes()

    @staticmethod
    def listing(folder: Path | int) -> dict[str, int]:
        with os.scandir(folder) as entries:
            return {entry.name: entry.inode() for entry in entries}

    def operation(self) -> None:
        """Count one operation, and fail if it is the chosen one."""
        if self.dead:
            raise Killed
        self.count += 1
        if self.count - 1 == self.fail_at:
            if self.error is not None:
                raise self.error
            self.dead = True
            raise Killed

    def lose_power(self, keep_renames: bool) -> None:
        """Undo everything that was not flushed; perhaps not the renames, which may come early."""
        for folder in [self.root, *(p for p in self.root.rglob("*") if p.is_dir())]:
            if not folder.exists():
                continue
            names = self.names.get(folder.stat().st_ino, {})
            flushed = {inode: name for name, inode in names.items()}
            present = self.listing(folder)
            for name, inode in present.items():
                if inode not in flushed and not (keep_renames and (folder / name).is_dir()):
                    _durable.remove_tree(folder / name)
            for name, inode in present.items():
                if flushed.get(inode, name) != name and not keep_renames:
                    (folder / name).rename(folder / flushed[inode])
        for file in self.root.rglob("*"):
            if file.is_file():
                file.write_bytes(self.contents.get(file.stat().st_ino, b""))


@contextlib.contextmanager
def failing_disk(
    root: Path, fail_at: int | None = None, error: OSError | None = None
) -> Iterator[Disk]:
    disk = Disk(root, fail_at, error)

    def wrapped(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            disk.operation()
            return function(*args, **kwargs)

        return call

    def flush(descriptor: int) -> None:  # remembered, not done: the power is lost in `Disk` alone
        disk.operation()
        status = os.fstat(descriptor)
        if os.path.isdir(f"/dev/fd/{descriptor}"):
            disk.names[status.st_ino] = disk.listing(descriptor)
        else:
            disk.contents[status.st_ino] = os.pread(
                os.open(f"/dev/fd/{descriptor}", os.O_RDONLY), status.st_size, 0
            )

    def opened(path: Path, mode: str) -> object:
        disk.operation()
        file = builtins.open(path, mode, buffering=0)  # noqa: SIM115  # closed by Torn
        write = file.write

        def torn_write(raw: bytes) -> int:
            try:
                disk.operation()
            except BaseException:
                write(bytes(raw)[: len(raw) // 2])
                raise
            return write(raw) or 0

        class Torn:
            def __enter__(self) -> "Torn":
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def write(self, raw: bytes) -> int:
                return torn_write(raw)

        return Torn()

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, wrapped(getattr(os, name)))
        patch.setattr(os, "fsync", flush)
        patch.setattr(_durable, "open", opened, raising=False)
        yield disk


def interruptions(root: Path, action: Callable[[Path], object]) -> Iterator[tuple[Path, bool]]:
    """Run an action with a kill or an error at each of its operations.

    Yields:
        The folder as the next process finds it, and whether the action was acknowledged.
    """
    template = root / "template"
    for error_number in (None, errno.ENOSPC):
        for power in ("stays", "lost", "lost but renamed") if error_number is None else ("stays",):
            fail_at = 0
            acknowledged = False
            while not acknowledged:
                folder = root / "run"
                shutil.copytree(template, folder)
                error = None if error_number is None else OSError(error_number, "injected")
                with failing_disk(folder, fail_at, error) as disk:
                    try:
                        action(folder)
                        acknowledged = disk.count <= fail_at
                        completed = True
                    except (Killed, CheckpointError):
                        completed = False
                if power != "stays":
                    disk.lose_power(keep_renames=power == "lost but renamed")
                yield folder, completed
                shutil.rmtree(folder)
                fail_at += 1
            assert fail_at > 5


def latest(folder: Path) -> Checkpoint:
    found = latest_checkpoint(folder)
    assert found is not None
    return found


def test_a_save_interrupted_anywhere_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    save(tmp_path / "template", 1)
    digests = {step: state_digest(small_state(step)) for step in (1, 2)}  # type: ignore[arg-type]  # of plain values
    cases = 0
    for folder, acknowledged in interruptions(tmp_path, lambda folder: save(folder, 2)):
        cases += 1
        found = latest(folder)
        assert not found.skipped
        assert found.step == 2 or not acknowledged
        assert state_digest(found.state) == digests[found.step]
        assert state_digest(load_checkpoint(folder / "step-1").state) == digests[1]
        clean_temporary(folder)
        assert {path.name for path in folder.iterdir()} <= {"step-1", "step-2"}
        if found.step == 1:
            save(folder, 2)
        assert latest(folder).step == 2
    assert cases > 40


def test_a_replacement_interrupted_anywhere_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    save(tmp_path / "template", 1, state={"weights": torch.tensor(1.0)})

    def replace(folder: Path) -> None:
        save_checkpoint(folder, 1, {"weights": torch.tensor(2.0)}, replaces=True)

    between = 0
    for folder, completed in interruptions(tmp_path, replace):
        found = latest(folder)
        assert not found.skipped
        weights = float(found.state["weights"])  # type: ignore[arg-type]  # a tensor
        assert weights == 2.0 if completed else weights in {1.0, 2.0}
        between += found.path.name != "step-1"
        clean_temporary(folder)
        assert latest(folder).path == found.path
        assert list(folder.iterdir()) == [found.path]
        replace(folder)
        clean_temporary(folder)
        assert [path.name for path in folder.iterdir()] == ["step-1"]
    assert between > 0


def error_of(action: Callable[[], object]) -> str | None:
    try:
        action()
    except CheckpointError as error:
        return str(error)
    return None


def test_a_failed_save_leaves_no_part_of_itself(tmp_path: Path) -> None:
    save(tmp_path, 1)
    failures = 0
    for fail_at in itertools.count():
        full = OSError(errno.ENOSPC, "No space left on device")
        with failing_disk(tmp_path, fail_at, full) as disk:
            message = error_of(lambda: save(tmp_path, 2))
        if message is None:
            assert disk.count <= fail_at
            break
        assert "step-2 could not be written: No space left" in message
        assert "earlier checkpoints are untouched" in message
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
        failures += 1
    assert failures > 10


def test_a_first_save_into_a_new_folder_is_durable(tmp_path: Path) -> None:
    with failing_disk(tmp_path) as disk:
        save(tmp_path / "run" / "checkpoints", 1)
    disk.lose_power(keep_renames=False)
    assert latest(tmp_path / "run" / "checkpoints").step == 1


def test_files_are_whole_when_they_are_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: dict[int, int] = {}

    def note(descriptor: int) -> None:
        status = os.fstat(descriptor)
        flushed[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", note)
    for file in save(tmp_path, 1).iterdir():
        status = file.stat()
        assert flushed[status.st_ino] == status.st_size > 0


def test_a_replaced_file_is_durable(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_bytes(b"old")
    with failing_disk(tmp_path) as disk:
        _durable.replace_file(file, b"new")
    disk.lose_power(keep_renames=False)
    assert file.read_bytes() == b"new"


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    with pytest.raises(CheckpointError, match="step-1 could not be written: Not a directory"):
        save(tmp_path / "checkpoints", 1)


def test_pruning_interrupted_anywhere_keeps_what_it_must(tmp_path: Path) -> None:
    (tmp_path / "template").mkdir()
    for step in range(1, 5):
        save(tmp_path / "template", step)

    def prune(folder: Path) -> None:
        prune_checkpoints(folder, keep=1, protect=[folder / "step-2"])

    for folder, completed in interruptions(tmp_path, prune):
        assert not latest(folder).skipped
        assert latest(folder).step == 4
        assert load_checkpoint(folder / "step-2").step == 2
        for path in list_checkpoints(folder):
            verify_checkpoint(path)
        if completed:
            assert [path.name for path in list_checkpoints(folder)] == ["step-2", "step-4"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_while_saving_loses_no_acknowledged_checkpoint(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, random, signal, sys, time
        from pathlib import Path
        import torch
        from rl_train.checkpoint import clean_temporary, latest_checkpoint, save_checkpoint

        root = Path(sys.argv[1])
        rng = random.Random(0)
        state = {"weights": torch.arange(25_000, dtype=torch.float32)}
        acknowledged = 0
        for kill in range(25):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                for step in range(acknowledged + 1, acknowledged + 10_000):
                    save_checkpoint(root, step, state, recipe=None, metadata={})
                    os.write(writer, b"%d\\n" % step)
            os.close(writer)
            begun = os.read(reader, 1) if kill % 2 else b""  # a slow machine saves something too
            time.sleep(rng.uniform(0.0, 0.06))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told = (begun + os.fdopen(reader, "rb").read()).split()
            acknowledged = max([acknowledged, *map(int, told)])
            latest = latest_checkpoint(root)
            step = 0 if latest is None else latest.step
            assert latest is None or not latest.skipped, latest.skipped
            assert step >= acknowledged, (kill, step, acknowledged)
            assert latest is None or torch.equal(latest.state["weights"], state["weights"])
            acknowledged = step
            clean_temporary(root)
            assert all(path.name.startswith("step-") for path in root.glob("*"))
        print("acknowledged", acknowledged)
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[1]) > 10


def test_reading_checkpoints_runs_no_code(tmp_path: Path) -> None:
    """An audit hook in a fresh process sees no execution, import or write while loading."""
    path = save(tmp_path, 1)
    hostile = save(tmp_path, 2)
    (hostile / "tensors.safetensors").write_bytes(pickle.dumps(small_state()))
    reseal(hostile)
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from rl_train.checkpoint import load_checkpoint
        from rl_core.errors import CheckpointError

        load_checkpoint(Path(sys.argv[1]))  # once before, for what is imported late
        watched = ("exec", "compile", "import", "os.system", "subprocess.", "socket.", "pickle.")

        def hook(event, arguments):
            if event.startswith(watched):
                raise SystemExit(f"{event} {arguments}")
            if event == "open" and any(c in str(arguments[1]) for c in "wax+"):
                raise SystemExit(f"{event} {arguments}")

        sys.addaudithook(hook)
        load_checkpoint(Path(sys.argv[1]))
        try:
            load_checkpoint(Path(sys.argv[2]))
        except CheckpointError as error:
            print(error)
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, str(path), str(hostile)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert "is not a safetensors file" in result.stdout


def test_no_module_of_core_and_runtime_can_unpickle() -> None:
    roots = [Path(package.__file__ or "").parent for package in (rl_core, rl_train)]
    sources = [source for root in roots for source in root.rglob("*.py")]
    assert len(sources) > 100
    forbidden = ("import pickle", "torch.load(", "torch.save(", "allow_pickle", "import marshal")
    for source in sources:
        text = source.read_text()
        assert not [word for word in forbidden if word in text], source
