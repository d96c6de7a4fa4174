"""How data collection and gradient steps take turns."""

from dataclasses import dataclass, fields
from typing import Annotated

from rl_core.config import Config, Count, Needs, NonNegativeInt


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateSchedule(Config):
    """How data collection and gradient steps take turns.

    Attributes:
        start_steps: environment transitions collected with uniformly random actions first.
        update_after: no update before this many environment transitions, random ones included.
        update_every: environment transitions between updates, rounded up to whole steps of all
            environments. Rows that only reset are none, and transitions beyond those that an
            update needs count toward the next one. None takes the storage's rollout.
        num_epochs: passes over the data in an update.
        num_mini_batch: minibatches per epoch.
        mini_batch_size: samples per minibatch; on-policy, only one of the two is given.
        keep_ratio: take more minibatches where environments that step together bring more than
            ``update_every`` transitions at a time.
        min_samples: how many the smallest minibatch of a rollout must have, where one teaches
            nothing.
        test_every: updates between evaluations; None evaluates only at the end.
        num_test_episodes: episodes per evaluation.

    Raises:
        ConfigError: for a negative or zero count.
    """

    start_steps: NonNegativeInt = 0
    update_after: NonNegativeInt = 0
    update_every: Count | None = None
    num_epochs: Count = 1
    num_mini_batch: Count | None = None
    mini_batch_size: Count | None = None
    keep_ratio: Annotated[bool, Needs("update_every"), Needs("num_mini_batch")] = False
    min_samples: Count = 1
    test_every: Count | None = None
    num_test_episodes: Count = 5

    @classmethod
    def of(cls, config: object, **others: int | None) -> "UpdateSchedule":
        """Take what a config says of it under the same names.

        Args:
            config: a dataclass.
            others: what it does not say, or says otherwise.

        Raises:
            ConfigError: for a negative or zero count.
        """
        said = {
            field.name: getattr(config, field.name)
            for field in fields(cls)
            if hasattr(config, field.name)
        }
        return cls(**{**said, **others})

    def rows_per_update(self, num_envs: int) -> int | None:
        """Return ``update_every`` in whole steps of all environments; None where it is not given.

        An update is due after so many transitions, more rows where some of them only reset.

        Args:
            num_envs: environments that step together.
        """
        if self.update_every is None:
            return None
        return -(-self.update_every // num_envs) * num_envs

    def batches_per_epoch(self, num_envs: int) -> int | None:
        """Return how many minibatches an epoch has; None where their size says so.

        Args:
            num_envs: environments that step together.
        """
        if not self.keep_ratio:
            return self.num_mini_batch
        rows = self.rows_per_update(num_envs)
        assert rows is not None
        assert self.update_every is not None
        assert self.num_mini_batch is not None
        return -(-self.num_mini_batch * rows // self.update_every)
