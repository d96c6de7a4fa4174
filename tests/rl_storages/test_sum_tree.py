import numpy as np
import numpy.typing as npt
import pytest

from rl_storages.sampling.sum_tree import LEAST_PRIORITY, PriorityTree


def _brute_force(
    priorities: npt.NDArray[np.float32], fractions: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    sums = priorities.astype(np.float64).cumsum()
    return np.array([int((sums <= fraction * sums[-1]).sum()) for fraction in fractions])


def test_draws_by_hand() -> None:
    tree = PriorityTree(5)
    tree.set(np.array([1, 3, 4]), np.array([1.0, 2.0, 1.0], np.float32))
    assert tree.total == 4.0
    assert tree.smallest() == 1.0
    fractions = np.array([0.0, 0.2, 0.25, 0.7, 0.75, 0.99])
    assert tree.find(fractions).tolist() == [1, 1, 3, 3, 4, 4]
    tree.set(np.array([3]), 0.0)
    assert tree.total == 2.0
    assert tree.find(np.array([0.49, 0.5])).tolist() == [1, 4]
    tree.set(np.array([1, 4]), np.array([3.0, 0.0], np.float32))
    assert tree.smallest() == 3.0


def test_what_stands_for_no_priority_is_not_the_smallest() -> None:
    """It is that of what is there only where nothing has more, and sizes end where floats do."""
    largest = np.finfo(np.float32).max
    tree = PriorityTree(40)
    assert tree.smallest() == LEAST_PRIORITY
    tree.set(np.array([3]), LEAST_PRIORITY)
    assert tree.smallest() == LEAST_PRIORITY
    tree.set(np.array([30]), largest)
    assert tree.smallest() == largest
    tree.set(np.array([31]), np.nextafter(LEAST_PRIORITY, np.float32(1.0)))
    assert LEAST_PRIORITY < tree.smallest() < 1.2e-38
    tree.set_all(0.0)
    assert tree.smallest() == LEAST_PRIORITY


@pytest.mark.parametrize("num_leaves", [1, 7, 64, 1000, 70_000])
def test_it_agrees_with_brute_force_through_random_changes(num_leaves: int) -> None:
    generator = np.random.default_rng(num_leaves)
    tree = PriorityTree(num_leaves)
    expected = np.zeros(num_leaves, np.float32)
    for _ in range(60):
        count = int(generator.integers(1, 40))
        indices = generator.integers(num_leaves, size=count)
        # Sixteenths add up without rounding, so both must agree exactly.
        priorities = (generator.integers(0, 64, size=count) / 16).astype(np.float32)
        tree.set(indices, priorities)
        expected[indices] = priorities
        assert np.array_equal(tree.leaves, expected)
        assert tree.total == expected.sum(dtype=np.float64)
        if tree.total:
            assert tree.smallest() == expected[expected > 0].min()
            first, end = generator.integers(num_leaves, size=2).tolist()
            of_range = expected[first:end] if first < end else [*expected[first:], *expected[:end]]
            above = [priority for priority in of_range if priority > 0]
            assert tree.smallest(first, end) == min(above, default=LEAST_PRIORITY)
            fractions = np.sort(generator.random(16))
            assert np.array_equal(tree.find(fractions), _brute_force(expected, fractions))


def test_no_leaf_without_priority_is_ever_found() -> None:
    """Also where sums round: numbers of very different size, and fractions at the ends."""
    generator = np.random.default_rng(0)
    last = np.nextafter(1.0, 0.0)
    for _ in range(300):
        num_leaves = int(generator.integers(1, 3000))
        tree = PriorityTree(num_leaves)
        some = generator.choice(num_leaves, size=int(generator.integers(1, 6)))
        tree.set(some, (10.0 ** generator.integers(-38, 38, size=len(some))).astype(np.float32))
        found = tree.find(np.array([0.0, *generator.random(50), last, 1.0]))
        assert (tree.leaves[found] > 0).all()


def test_a_draw_stays_in_its_block_where_its_sum_is_rounded() -> None:
    """A block's sum may exceed what its leaves add up to from the left, by a rounding."""
    generator = np.random.default_rng(0)
    for _ in range(300):
        tree = PriorityTree(
            16
        )  # two blocks of eight; the second begins with a leaf that must not be
        tree.set(np.arange(8), (10.0 ** generator.uniform(-9, 3, 8)).astype(np.float32))
        tree.set(np.array([9]), 1e-30)
        end = np.nextafter(1.0, 0.0)
        assert tree.find(np.array([end, np.nextafter(end, 0.0)])).max() < 8


def test_the_last_of_several_changes_counts() -> None:
    tree = PriorityTree(3)
    tree.set(np.array([1, 1, 1]), np.array([5.0, 7.0, 2.0], np.float32))
    assert tree.total == 2.0


def test_sums_do_not_drift() -> None:
    generator = np.random.default_rng(0)
    tree = PriorityTree(500)
    for _ in range(2000):
        tree.set(generator.integers(500, size=8), 1e6 * generator.random(8, np.float32))
        _ = tree.total
    tree.set_all(0.0)
    tree.set(np.array([499]), 0.125)
    assert tree.total == 0.125
