r"""Prioritized sampling: transitions with large TD errors are replayed more often.

Source: Schaul et al. 2016, https://arxiv.org/abs/1511.05952, sections 3.3 and 3.4.

(1) $P(i) = p_i^\alpha / \sum_k p_k^\alpha$ with $p_i = |\delta_i| + \epsilon$

(2) $w_i = (N\,P(i))^{-\beta} / \max_j w_j = (\min_j P(j) / P(i))^\beta$, over what could be drawn

Sampling is stratified: one from each of N equal shares of the total. A transition that no gradient
step has seen yet has the largest priority so far.

Sequences are sampled as a whole, by the errors of the transitions that are learned from. A sequence
that has grown since then counts as new.

Source: Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX, section 2.3.

(3) $\delta_i = \eta \max_t |\delta_{i,t}| + (1 - \eta) \, \mathrm{mean}_t |\delta_{i,t}|$
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rl_core.batch import ReplayBatch
from rl_core.config import as_schedule, check_argument, parse_schedule
from rl_core.errors import CheckpointError, ConfigError, DataError
from rl_core.stateful import StateFields, StateReader
from rl_core.storage import IndexSampler, ReplayRows, empty_storage_error
from rl_core.types import StateDict
from rl_storages.config import PrioritizedConfig, RecentConfig
from rl_storages.replay.flags import Mask
from rl_storages.replay.ring import ReplayRing
from rl_storages.sampling.index_layout import IndexLayout, LayoutBySlot, LayoutByTime
from rl_storages.sampling.recent import RecentWindows
from rl_storages.sampling.sum_tree import LARGEST_ERROR, LEAST_PRIORITY, Priorities, PriorityTree

_ETA = 0.9
"""Default of Eq. (3)."""


class PrioritizedSampler(StateFields, IndexSampler):
    """Samples in proportion to Eq. (1), with the weights of Eq. (2).

    Args:
        config: options.
        recent: sample from the newest only; sums in the equations are then over these.
    """

    state_fields = ("_alpha", "_beta", "_largest", "_order")
    needs_td_errors = True
    rows: ReplayRing

    def __init__(self, config: PrioritizedConfig, recent: RecentConfig | None = None) -> None:
        self._config = config
        self._recent = recent

    def attach(self, rows: ReplayRows, generator: torch.Generator) -> None:
        """Begin to draw from rows, which are empty, with the config's options."""
        super().attach(rows, generator)
        self._alpha = float(self._config.alpha)
        self._beta_schedule = as_schedule(self._config.beta)
        self._beta = self._beta_schedule.value(0.0)
        self._largest = 1.0
        ring, recent = self.rows, self._recent
        self._tree = PriorityTree(ring.num_slots)
        self._errors: Priorities = np.zeros(ring.num_slots, dtype=np.float32)
        self._range: tuple[int, int | None] = (0, None)  # what was drawn from, of the tree
        self._windows = None if recent is None else RecentWindows(recent, ring.learned)
        # Laid out by time, the newest priorities are next to each other in the tree.
        self._order: IndexLayout = LayoutBySlot(ring) if recent is None else LayoutByTime(ring)

    @staticmethod
    def bytes_for(num_slots: int) -> int:
        """Return how many bytes it needs for a number of slots, without their layout."""
        return PriorityTree.bytes_for(num_slots) + 4 * num_slots

    def draw(self, num_batches: int, size: int) -> Iterator[Tensor]:
        """Yield blocks of one batch, because learning from it changes the next one's priorities."""
        shares = np.arange(size)
        order = self._order
        for batch in range(num_batches):
            self._catch_up()
            if self._tree.total == 0.0:
                raise empty_storage_error()
            drawn = torch.rand(size, dtype=torch.float64, generator=self.generator).numpy()
            fractions = (drawn + shares) / size
            if self._windows is None:
                slots = self._tree.find(fractions)
            else:
                assert isinstance(order, LayoutByTime)
                width = self._windows.width(len(order), batch, num_batches)
                first = order.first_of_newest(width)
                self._range = order.range_from(first)
                slots = order.slots_of(self._tree.find(fractions, *self._range), first)
            yield torch.from_numpy(slots[None])

    def weights(self, slots: Tensor) -> Tensor:
        """Return the weights of Eq. (2), `(K, N)`; a slot without a priority weighs 1."""
        smallest = self._tree.smallest(*self._range)
        priorities = self._tree.leaves.take(self._order.leaves(slots.numpy()))
        ratios = smallest / np.maximum(priorities, smallest)
        return torch.from_numpy(ratios ** np.float32(self._beta))

    def after_gradients(self, batch: ReplayBatch, info: Mapping[str, Tensor]) -> None:
        """Set priorities from ``info["td_error"]``; samples overwritten since then are skipped.

        Raises:
            ConfigError: when the gradient step returned no errors.
            DataError: when they are not finite, beyond 1e30, or not one per sample; nothing is
                changed.
        """
        errors = self._checked_errors(batch, info)
        self._catch_up()
        ring = self.rows
        slots, generations = batch.index.numpy(force=True).T
        is_there = (ring.generations(slots) == generations) & self._order.holds(slots)
        if not is_there.all():
            slots, errors = slots[is_there], errors[is_there]
        if len(slots):
            self._largest = max(self._largest, float(errors.max()))
            self._errors[slots] = errors
            self._tree.set(self._order.leaves(slots), self._priorities(errors))

    def note_returns(self, returns: Sequence[float]) -> None:
        """Adapt eta to the returns of finished episodes, if only the newest are sampled."""
        if self._windows is not None:
            self._windows.note_returns(returns)

    def reset(self) -> None:
        """Forget all priorities, but not the largest error."""
        super().reset()
        self._errors[:] = 0.0
        self._tree.set_all(0.0)
        self._order.reset()
        self._range = (0, None)

    def set_progress(self, progress: float) -> None:
        """Move beta along its schedule."""
        self._beta = self._beta_schedule.value(progress)

    def live_parameters(self) -> Mapping[str, float]:
        """Return alpha and beta, and eta if only the newest are sampled."""
        of_windows = {} if self._windows is None else self._windows.live_parameters()
        return {"alpha": self._alpha, "beta": self._beta, **of_windows}

    def set_live_parameter(self, name: str, value: float) -> None:
        """Set alpha, which changes all priorities at once; beta, whose schedule ends; or eta."""
        if name == "eta":
            assert self._windows is not None
            self._windows.set_eta(value)
            return
        check_argument(name, value, float)  # no schedule
        replace(self._config, **{name: value})  # checks the range
        if name == "alpha":
            self._catch_up()
            self._alpha = float(value)
            self._set_priorities()
        else:
            self._beta_schedule = as_schedule(value)
            self._beta = float(value)

    def metrics(self) -> Mapping[str, float]:
        """Return the live parameters, and the gradient of the returns if eta adapts to it."""
        of_windows = {} if self._windows is None else self._windows.metrics()
        return {**self.live_parameters(), **of_windows}

    def state_dict(self) -> StateDict:
        """Return errors and priorities of the slots in use, and the parameters."""
        self._catch_up()
        used, slots = self.rows.write_positions.used_slots, self._order.stored()
        priorities: Priorities = np.zeros(used, dtype=np.float32)
        priorities[slots] = self._tree.leaves[self._order.leaves(slots)]
        return {
            **super().state_dict(),
            "windows": {} if self._windows is None else self._windows.state_dict(),
            "beta_schedule": str(self._beta_schedule),
            "errors": torch.from_numpy(self._errors[:used]),
            "priorities": torch.from_numpy(priorities),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state returned by `state_dict`.

        Raises:
            CheckpointError: when it is damaged, or of another sampler.
        """
        saved = StateReader(state, "storage/sampler")
        fields = (name.lstrip("_") for name in self.state_fields)
        saved.expect((*fields, "windows", "beta_schedule", "errors", "priorities"))
        windows = saved.tree("windows")
        try:
            schedule = parse_schedule(saved.text("beta_schedule"))
            replace(self._config, alpha=saved.number("alpha"), beta=saved.number("beta"))
            replace(self._config, beta=schedule)
        except ConfigError as error:
            raise CheckpointError(f"the saved parameters are damaged: {error}") from error
        used = self.rows.write_positions.used_slots
        like = torch.zeros(used)
        errors, priorities = saved.tensor("errors", like), saved.tensor("priorities", like)
        for name, values in (("errors", errors), ("priorities", priorities)):
            _check_magnitudes(name, values.numpy(force=True))
        _check_magnitudes("largest", np.asarray(saved.number("largest"), dtype=np.float32))
        self.reset()
        self.load_fields(saved)
        if self._windows is not None:
            self._windows.load_state_dict(windows)
        self._beta_schedule = schedule
        self._errors[:used] = errors.numpy(force=True)
        slots = self._order.stored()
        of_slots = priorities.numpy(force=True)[slots]
        if not of_slots.all():
            raise CheckpointError("storage/sampler: 'priorities' are 0 where a transition is")
        self._tree.set(self._order.leaves(slots), of_slots)

    def _checked_errors(self, batch: ReplayBatch, info: Mapping[str, Tensor]) -> Priorities:
        given = info.get("td_error")
        if given is None:
            raise ConfigError(
                "prioritized replay needs gradient steps that return 'td_error', got "
                f"{sorted(info)}; use it with an algorithm whose steps do"
            )
        errors: Priorities = given.detach().to("cpu", torch.float32).numpy()
        if errors.shape != batch.mask.shape:
            expected = tuple(batch.mask.shape)
            raise DataError(
                f"td_error: got shape {errors.shape}; expected {expected}, one per sample"
            )
        errors = np.abs(errors)
        counts = None
        if errors.ndim == 2:
            counts = batch.mask.numpy(force=True) > 0
            errors = np.where(counts, errors, np.float32(0.0))
        if not errors.max(initial=0.0) <= LARGEST_ERROR:  # NaN is not
            total = errors.size if counts is None else int(np.count_nonzero(counts))
            raise _unusable(errors, total)
        if counts is not None:
            eta = np.float32(_ETA if self._config.eta is None else self._config.eta)
            mean = errors.sum(0) / np.maximum(counts.sum(0, dtype=np.float32), np.float32(1.0))
            errors = eta * errors.max(0) + (1 - eta) * mean  # Eq. (3)
        errors += np.float32(self._config.epsilon)
        return errors

    def _default_error(self) -> Priorities:
        """Return the error of transitions that no gradient step has seen yet."""
        config = self._config
        if config.default_error is None:
            return np.asarray(self._largest, dtype=np.float32)
        return np.asarray(config.default_error + config.epsilon, dtype=np.float32)

    def _priorities(self, errors: Priorities) -> Priorities:
        """Eq. (1), not divided by the sum."""
        priorities: Priorities = errors ** np.float32(self._alpha)
        return np.maximum(priorities, LEAST_PRIORITY)

    def _set_priorities(self) -> None:
        """Derive all priorities from the errors."""
        slots = self._order.stored()
        self._tree.set_all(0.0)
        self._tree.set(self._order.leaves(slots), self._priorities(self._errors[slots]))

    def _catch_up(self) -> None:
        """Process what was inserted: overwritten slots lose their priority, new ones get one."""
        given_up, new = self._order.catch_up()
        if len(given_up):
            self._tree.set(given_up, 0.0)
        if len(new):
            error = self._default_error()
            self._errors[new] = error
            self._tree.set(self._order.leaves(new), self._priorities(error))


def _unusable(errors: Priorities, total: int) -> DataError:
    """Return the error that names samples whose errors cannot be priorities."""
    is_usable: Mask = errors <= LARGEST_ERROR
    samples = np.flatnonzero(~is_usable.reshape(-1, is_usable.shape[-1]).all(0))
    values = errors[~is_usable]
    some = ", ".join(map(str, samples[:5].tolist())) + (", ..." if len(samples) > 5 else "")
    return DataError(
        f"td_error: {len(values)} of {total} errors are not finite, or beyond {LARGEST_ERROR:g}: "
        f"those of samples {some} of the batch, the first is {values[0]}; no priority was changed. "
        "See whether rewards and observations of these samples are finite; if they are, learning "
        "diverged: lower the learning rate, bound the gradients, or scale the rewards"
    )


def _check_magnitudes(name: str, values: Priorities) -> None:
    """Check saved magnitudes.

    Raises:
        CheckpointError: unless all are finite and none is negative.
    """
    if not (np.isfinite(values) & (values >= 0)).all():
        raise CheckpointError(f"storage/sampler: '{name}' should be finite and not negative")
