"""One seed gives every part its own numbers, which can be saved and continued."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rl_core.errors import CheckpointError, ConfigError, DeviceError
from rl_core.seeding import (
    numpy_generator_state,
    resumed_seed,
    set_generator_state,
    set_numpy_generator_state,
    spawn_generator,
    spawn_seed,
)
from rl_core.types import StateValue

BIT_GENERATORS: list[Callable[[int], np.random.BitGenerator]] = [
    np.random.PCG64,
    np.random.PCG64DXSM,
    np.random.MT19937,
    np.random.Philox,
    np.random.SFC64,
]


def test_the_same_seed_and_name_give_the_same_numbers() -> None:
    first, second = (torch.randn(9, generator=spawn_generator(3, "actor")) for _ in range(2))
    assert torch.equal(first, second)


def test_names_and_seeds_and_indices_differ() -> None:
    seeds = {
        spawn_seed(seed, name, index)
        for seed in (0, 1, 2**80)
        for name in ("env", "envs", "actor", "")
        for index in range(50)
    }
    assert len(seeds) == 3 * 4 * 50
    assert len({spawn_generator(0, f"part-{i}").initial_seed() for i in range(50)}) == 50


def test_seeds_fit_every_simulator_and_never_change() -> None:
    assert all(0 <= spawn_seed(0, "env", i) < 2**31 for i in range(1000))
    # Written down: a change would give every recipe other numbers.
    assert [spawn_seed(0, "env"), spawn_seed(0, "env", 1), spawn_seed(7, "actor")] == [
        553957543,
        99657187,
        1734906203,
    ]


def test_wrong_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got -1"):
        spawn_seed(-1, "env")
    with pytest.raises(ConfigError, match="seed must be a whole number of at least 0, got True"):
        spawn_seed(True, "env")


def test_a_torch_generator_continues_where_it_was() -> None:
    generator = spawn_generator(1, "a")
    torch.randn(5, generator=generator)
    state = generator.get_state()
    assert state.dtype == torch.uint8
    expected = torch.randn(5, generator=generator)
    other = torch.Generator()
    set_generator_state(other, state)
    assert torch.equal(torch.randn(5, generator=other), expected)
    set_generator_state(generator, state)  # the saved tensor did not move with the generator
    assert torch.equal(torch.randn(5, generator=generator), expected)


def test_a_state_of_another_kind_of_device_seeds_a_generator() -> None:
    """Of 16 bytes, as CUDA has them; each time with the same numbers, and others per state."""
    drawn = []
    for saved in (torch.arange(16), torch.arange(16), torch.arange(16) + 1):
        generator = torch.Generator()
        with pytest.warns(RuntimeWarning, match="saved on cuda continues with other numbers"):
            set_generator_state(generator, saved.to(torch.uint8))
        drawn.append(torch.randn(5, generator=generator))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_wrong_torch_state_is_refused() -> None:
    generator = torch.Generator()
    before = generator.get_state()
    with pytest.raises(CheckpointError, match="3 bytes does not fit"):
        set_generator_state(generator, torch.zeros(3, dtype=torch.uint8))
    with pytest.raises(CheckpointError, match="float32 tensor of shape"):
        set_generator_state(generator, torch.zeros(3))
    with pytest.raises(CheckpointError, match="a str"):
        set_generator_state(generator, "x")
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("bit_generator", BIT_GENERATORS)
def test_a_numpy_generator_continues_where_it_was(
    bit_generator: Callable[[int], np.random.BitGenerator],
) -> None:
    generator = np.random.Generator(bit_generator(5))
    generator.random(7, dtype=np.float32)  # leaves half a word behind
    state = numpy_generator_state(generator)
    expected = generator.random(9, dtype=np.float32)
    other = np.random.Generator(bit_generator(6))
    set_numpy_generator_state(other, state)
    assert np.array_equal(other.random(9, dtype=np.float32), expected)


def test_a_numpy_state_holds_no_large_integers_and_no_arrays() -> None:
    for bit_generator in BIT_GENERATORS:
        state = numpy_generator_state(np.random.Generator(bit_generator(5)))
        assert all(isinstance(value, str) for value in state.values())


def test_a_wrong_numpy_state_is_refused() -> None:
    generator = np.random.default_rng(5)
    text = str(numpy_generator_state(generator)["json"])
    expected = np.random.default_rng(5).random(3)
    mersenne = np.random.Generator(np.random.MT19937(1))
    wrong: list[StateValue] = [
        numpy_generator_state(mersenne)["json"],
        text.replace('"has_uint32": 0', '"has_uint32": "0"'),
        text.replace('"uinteger": 0', f'"uinteger": {"9" * 5000}'),
        text.replace('"uinteger": 0', f'"uinteger": {"9" * 40}'),
        text.replace('"inc"', '"other"'),
        text[:-1],
        "[]",
        1,
        None,
    ]
    for value in wrong:
        with pytest.raises(CheckpointError, match="does not fit a PCG64"):
            set_numpy_generator_state(generator, {"json": value})
    with pytest.raises(CheckpointError, match="does not fit a PCG64: KeyError: 'json'"):
        set_numpy_generator_state(generator, {})
    short = '{"bit_generator": "MT19937", "state": {"key": [0, 0, 0], "pos": 1}}'
    with pytest.raises(CheckpointError, match="does not fit a MT19937"):
        set_numpy_generator_state(mersenne, {"json": short})
    assert np.array_equal(generator.random(3), expected)


def test_nothing_draws_from_the_global_generators() -> None:
    torch_before = torch.get_rng_state()
    numpy_before = np.random.get_state(legacy=False)
    spawn_generator(1, "a")
    spawn_seed(1, "a")
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert str(np.random.get_state(legacy=False)) == str(numpy_before)


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(DeviceError, match="xpu"):
        spawn_generator(1, "a", "xpu:77")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_generator_continues_where_it_was() -> None:
    generator = spawn_generator(1, "a", "cuda")
    torch.randn(5, generator=generator, device="cuda")
    state = generator.get_state()
    assert state.device.type == "cpu"
    expected = torch.randn(5, generator=generator, device="cuda")
    set_generator_state(generator, state)
    assert torch.equal(torch.randn(5, generator=generator, device="cuda"), expected)
    with pytest.warns(RuntimeWarning, match="saved on cpu"):
        set_generator_state(generator, torch.Generator().get_state())
    assert not torch.equal(torch.randn(5, generator=generator, device="cuda"), expected)


def test_seeds_after_a_resume_are_accepted_by_every_simulator() -> None:
    seeds = {resumed_seed(1, steps) for steps in range(200)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
