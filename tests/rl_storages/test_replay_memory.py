import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_storages.replay.columns as columns_module
import rl_storages.replay.memory as memory
from rl_core.config import Linear, construct, decode, encode, options_of
from rl_core.errors import ConfigError, DataError
from rl_core.storage import StorageSpec, TensorSpec
from rl_core.types import Array
from rl_storages import (
    HindsightConfig,
    PrioritizedConfig,
    RecentConfig,
    ReplayBuffer,
    SequenceConfig,
)
from rl_storages.replay.ring import ReplayRing
from rl_testing.replay import LIVES
from rl_testing.stateful import check_same_state
from rl_testing.storages import columns_of, seeded, stored
from rl_testing.transitions import TransitionScript

CPU = torch.device("cpu")
HALF_CHEETAH = StorageSpec(
    TensorSpec((17,), torch.float32), TensorSpec((6,), torch.float32), 1, {}, {}, CPU
)
ATARI = StorageSpec(
    TensorSpec((84, 84, 4), torch.uint8), TensorSpec((), torch.int64), 8, {}, {}, CPU
)
_GOAL = TensorSpec((1,), torch.float32)
GOALS = StorageSpec(
    {"achieved_goal": _GOAL, "desired_goal": _GOAL}, TensorSpec((), torch.int64), 1, {}, {}, CPU
)

HINDSIGHT: Mapping[str, Any] = {
    "hindsight": HindsightConfig(),
    "her_function": lambda achieved, desired, info: achieved[..., 0],
}
DRAWS = [
    ({}, 0, 0),
    ({"prioritized": PrioritizedConfig()}, 1, 4),
    ({"recent": RecentConfig(cmin=1)}, 1, 16),
    ({"prioritized": PrioritizedConfig(), "recent": RecentConfig(cmin=1)}, 2, 20),
    (HINDSIGHT, 0, 24),
    ({"prioritized": PrioritizedConfig(), "recent": RecentConfig(cmin=1), **HINDSIGHT}, 2, 44),
]
"""How to draw, and what that takes: trees, and bytes per row beside them."""


def _allocated(storage: ReplayBuffer, spec: StorageSpec) -> ReplayBuffer:
    storage.allocate(spec, seeded())
    return storage


def test_a_million_half_cheetah_transitions_take_97_bytes_each() -> None:
    storage = _allocated(ReplayBuffer(1_000_000), HALF_CHEETAH)
    assert storage.nbytes == 1_000_001 * 4 * (17 + 6 + 1) + 1_000_001
    assert storage.nbytes <= 110e6


def test_images_stay_bytes() -> None:
    storage = _allocated(ReplayBuffer(800), ATARI)
    assert storage.nbytes == 101 * 8 * (84 * 84 * 4 + 8 + 4 + 1)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_what_is_not_used_yet_costs_nothing() -> None:
    """In a new process: the allocator clears what it uses again, and training changes its ways."""
    code = """
from pathlib import Path
from rl_storages import ReplayBuffer
from rl_testing.storages import seeded
from tests.rl_storages.test_replay_memory import DRAWS, GOALS

def resident():
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096

kept = [ReplayBuffer(10)]
kept[0].allocate(GOALS, seeded())  # loads what the first one needs of the libraries
for options, trees, per_row in DRAWS:
    before = resident()
    kept.append(ReplayBuffer(10_000_000, **options))
    kept[-1].allocate(GOALS, seeded())
    assert kept[-1].nbytes > (21 + 4 * trees + per_row) * 10_000_000
    print(resident() - before)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    grown = [int(line) for line in done.stdout.splitlines()]
    assert len(grown) == len(DRAWS)
    assert max(grown) < 10e6  # of 210 to 730 MB


def test_more_than_there_is_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda *_: 1_000_000_000)
    storage = ReplayBuffer(1_000_000)
    with pytest.raises(ConfigError) as caught:
        storage.allocate(ATARI, seeded())
    assert str(caught.value) == (
        "storage.size: the replay buffer needs 28.2 GB (28237 bytes per transition), but only "
        "1.0 GB of memory on cpu are available; a size of 35000 fits"
    )
    assert storage.spec is None
    _allocated(ReplayBuffer(35_000), ATARI)


@pytest.mark.parametrize(("options", "trees", "per_row"), DRAWS)
def test_what_is_kept_to_draw_counts_too(options: dict[str, Any], trees: int, per_row: int) -> None:
    """A tree of 1,000,001 rows has 15,626 blocks of 64, two sums and, of priorities, a minimum."""
    tree = 15_626 * (64 * 4 + 16) + 8
    minima = 15_626 * 4 * ("prioritized" in options)
    plain = _allocated(ReplayBuffer(1_000_000), GOALS).nbytes
    storage = _allocated(ReplayBuffer(1_000_000, **options), GOALS)
    assert storage.nbytes - plain == trees * tree + minima + per_row * 1_000_001


@pytest.mark.parametrize(("options", "trees", "per_row"), DRAWS)
def test_what_is_counted_is_what_there_is(
    options: dict[str, Any], trees: int, per_row: int
) -> None:
    storage = _allocated(ReplayBuffer(3_000, **options), GOALS)
    arrays = {**_arrays(storage._sampler), **_arrays(storage._relabeler)}
    kept = sum(array.nbytes for array in arrays.values())
    assert kept == storage.nbytes - storage.ring.columns.nbytes
    assert kept >= (4 * trees + per_row) * 3_001


def _arrays(part: object) -> dict[int, Array]:
    """Find the arrays of more than one entry per environment, in all parts but the ring."""
    found: dict[int, Array] = {}
    for value in vars(part).values() if part is not None else ():
        if isinstance(value, np.ndarray):
            whole = value if value.base is None else value.base
            found |= {id(whole): whole} if whole.size > 1 else {}
        elif type(value).__module__.startswith("rl_storages") and not isinstance(value, ReplayRing):
            found |= _arrays(value) if hasattr(value, "__dict__") else {}
    return found


def test_what_is_kept_to_draw_must_fit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of HalfCheetah takes 97 bytes, its priority and error 8, and its share of sums 3."""
    monkeypatch.setattr(memory, "available_bytes", lambda *_: 1_000_000)
    _allocated(ReplayBuffer(10_000), HALF_CHEETAH)
    with pytest.raises(ConfigError, match=r"1\.1 MB \(108 bytes .*; a size of 9200 fits"):
        _allocated(ReplayBuffer(10_000, prioritized=PrioritizedConfig()), HALF_CHEETAH)


def test_a_size_that_fits_has_room_for_what_comes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 environments each has its share, a row more, and 9 before its oldest sequence.

    A row takes 97 bytes, so in 100,000 bytes there are 103 of each environment, and 93 to share.
    """
    monkeypatch.setattr(memory, "available_bytes", lambda *_: 100_000)
    spec = replace(HALF_CHEETAH, num_envs=10)
    sequences = SequenceConfig(length=10)
    with pytest.raises(ConfigError, match="a size of 930 fits"):
        _allocated(ReplayBuffer(1_000, sequences=sequences), spec)
    _allocated(ReplayBuffer(930, sequences=sequences), spec)


def test_no_size_fits_where_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda *_: 100)
    with pytest.raises(ConfigError, match=r"only 0\.0 MB of memory on cpu .*; no size fits"):
        _allocated(ReplayBuffer(50), HALF_CHEETAH)


def test_needs_by_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards and flags stay on the CPU beside a GPU, 5 bytes; what draws need always does."""
    monkeypatch.setattr(memory, "available_bytes", lambda *place: len(place))
    specs = columns_module.replay_columns(HALF_CHEETAH)
    need = memory.Need
    on_cpu, disk = need(108, "memory on cpu", 1), need(97, f"disk in {tmp_path}", 2)
    assert memory.row_needs(specs, 11, CPU) == [on_cpu]
    assert memory.row_needs(specs, 11, CPU, tmp_path) == [disk, need(11, "memory on cpu", 1)]
    assert memory.row_needs(specs, 11, torch.device("cuda")) == [
        need(92, "memory on cuda", 1),
        need(16, "memory on cpu", 1),
    ]


def test_an_impossible_size_is_refused_on_any_machine() -> None:
    with pytest.raises(ConfigError, match="a size of"):
        ReplayBuffer(10**12).allocate(ATARI, seeded())


@pytest.mark.parametrize(
    ("free", "limit", "expected"),
    [
        ("MemTotal: 9 kB\nMemAvailable:   2000 kB\n", None, 2_048_000),
        ("MemAvailable: 2000 kB\n", "1000000\n", 450_000),
        ("MemAvailable: 2000 kB\n", "600000\n", 50_000),
        ("MemAvailable: 2000 kB\n", "500000\n", 0),
        ("MemAvailable: 2000 kB\n", "9000000\n", 2_048_000),
        ("MemAvailable: 2000 kB\n", "max\n", 2_048_000),
    ],
)
def test_the_system_tells_what_is_available(
    free: str, limit: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container uses 700,000 bytes, of which 150,000 are files that it has read."""
    (tmp_path / "meminfo").write_text(free, "ascii")
    (tmp_path / "memory.current").write_text("700000\n", "ascii")
    (tmp_path / "memory.stat").write_text(
        "anon 500000\nfile 200000\ninactive_file 100000\nactive_file 50000\n", "ascii"
    )
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit, "ascii")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert memory.available_bytes(CPU) == expected


def test_without_a_figure_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "nothing")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "nothing")
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4}.get(name, 5))
    assert memory.available_bytes(CPU) == 20
    assert memory.available_bytes(torch.device("meta")) is None
    unknown = memory.Need(10**9, "memory", None)
    memory.check_fits([unknown], size=10**9, num_rows=10**9, num_envs=1)


@pytest.mark.parametrize("name", ["same_step_dict_box", "next_step_interrupted"])
def test_files_hold_what_memory_does(name: str, tmp_path: Path) -> None:
    life = LIVES[name]
    in_memory = _allocated(ReplayBuffer(150, n_step=3), life.spec())
    in_files = _allocated(ReplayBuffer(150, n_step=3, mmap_dir=str(tmp_path)), life.spec())
    for transition in life.transitions(100):
        in_memory.insert_transition(transition)
        in_files.insert_transition(transition)
    check_same_state(stored(in_files), stored(in_memory))
    for theirs, ours in zip(
        in_files.generate_batches(2, 32), in_memory.generate_batches(2, 32), strict=True
    ):
        check_same_state(columns_of(theirs), columns_of(ours))


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which files are mapped")
def test_files_have_no_names_and_their_room_is_reserved(tmp_path: Path) -> None:
    """So nothing is left of them after a kill, and a disk that is full later does not matter."""
    one = _allocated(ReplayBuffer(5000, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    other = _allocated(ReplayBuffer(5000, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    assert list(tmp_path.iterdir()) == []
    held = _held_files(tmp_path)
    assert sum(each.st_size for each in held) == one.nbytes + other.nbytes
    assert all(each.st_blocks * 512 >= each.st_size for each in held)
    assert len({each.st_ino for each in held}) == len(held)
    one.allocate(HALF_CHEETAH, seeded())
    assert len(_held_files(tmp_path)) == len(held)
    del one, other
    assert _held_files(tmp_path) == []


def _held_files(directory: Path) -> list[os.stat_result]:
    """Return what is known of the files of a directory that this process has open."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one by which the others are listed
            if os.readlink(path).startswith(f"{directory}/"):
                found.append(path.stat())
    return found


def test_a_disk_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(ConfigError, match=rf"{tmp_path} takes no file .*No space.*storage\.size"):
        _allocated(ReplayBuffer(50, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_reserves_nothing_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unknown, raising=False)
    storage = _allocated(ReplayBuffer(50, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    assert storage.nbytes > 0


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"storage\.mmap_dir: .*nowhere is not an existing"):
        _allocated(ReplayBuffer(50, mmap_dir=str(tmp_path / "nowhere")), HALF_CHEETAH)
    with pytest.raises(ConfigError, match=r"storage\.mmap_dir must be text, or None, got 3"):
        ReplayBuffer(50, mmap_dir=3)  # type: ignore[arg-type]


def test_a_full_disk_is_noticed_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda *_: 4000)
    with pytest.raises(ConfigError, match=rf"only 0\.0 MB of disk in {tmp_path} are available"):
        _allocated(ReplayBuffer(50, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    assert list(tmp_path.iterdir()) == []


def test_full_memory_is_noticed_beside_a_disk_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What 51 rows need in memory, 11 bytes each, is 561."""
    monkeypatch.setattr(memory, "available_bytes", lambda _, disk=None: 10**9 if disk else 400)
    _allocated(ReplayBuffer(50, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    prioritized = PrioritizedConfig()
    with pytest.raises(ConfigError, match=r"only 0\.0 MB of memory on cpu are available; a size"):
        _allocated(ReplayBuffer(50, prioritized=prioritized, mmap_dir=str(tmp_path)), HALF_CHEETAH)
    assert list(tmp_path.iterdir()) == []


def test_a_column_that_numpy_does_not_know_is_refused() -> None:
    spec = StorageSpec(HALF_CHEETAH.observation, TensorSpec((), torch.bfloat16), 1, {}, {}, CPU)
    with pytest.raises(ConfigError, match=r"'action': NumPy has no torch\.bfloat16"):
        _allocated(ReplayBuffer(50), spec)


def test_options_go_through_recipes() -> None:
    data = {
        "size": 500,
        "n_step": 3,
        "prioritized": {"alpha": 0.7, "beta": "linear(0.4, 1.0)"},
        "mmap_dir": "none",
    }
    options = decode(options_of(ReplayBuffer), data)
    storage = construct(ReplayBuffer, {"device": CPU}, options)
    assert (storage.size, storage.n_step, storage.mmap_dir) == (500, 3, None)
    assert storage.prioritized == PrioritizedConfig(alpha=0.7, beta=Linear(0.4, 1.0))
    encoded = encode(options)
    assert isinstance(encoded, Mapping)
    assert encoded["prioritized"]["beta"] == "linear(0.4, 1.0)"  # type: ignore[index, call-overload]
    assert decode(options_of(ReplayBuffer), encoded) == options


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_tensors_take_what_arrays_do(
    life: TransitionScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere than on the CPU there are tensors only; here they are on the CPU all the same."""
    with_arrays = _allocated(ReplayBuffer(150, n_step=3), life.spec())
    usual = columns_module._fast
    monkeypatch.setattr(
        columns_module,
        "_fast",
        lambda name, part: usual(name, part) if name in columns_module.HOST_COLUMNS else part,
    )
    with_tensors = _allocated(ReplayBuffer(150, n_step=3), life.spec())
    transitions = life.transitions(120)
    for number, transition in enumerate(transitions):
        for storage in (with_arrays, with_tensors):
            storage.insert_transition(transition)
            if number == 60:
                storage.insert_data_slice(storage.get_data_slice(3, 9))
        check_same_state(stored(with_tensors), stored(with_arrays))
    for theirs, ours in zip(
        with_tensors.generate_batches(2, 32), with_arrays.generate_batches(2, 32), strict=True
    ):
        check_same_state(columns_of(theirs), columns_of(ours))
    with pytest.raises(DataError, match=r"transition\.action: got torch\.float64"):
        with_tensors.insert_transition(
            replace(transitions[0], action=torch.as_tensor(transitions[0].action).double())
        )
