r"""Terms that draw a policy towards others or push it away from them.

With other policies $b_1 \dots b_K$ and weights $w_i > 0$ that sum to 1:

(1) $L = c \min_i \left(\mathbb{E}_t[D(b_i, \pi)] - \log w_i\right)$, attraction to the nearest

(2) $L = -c \sum_i w_i\, \mathbb{E}_t[\min(D(b_i, \pi), D_{max})]$, repulsion from all

(3) $D(b, \pi) = KL(b(\cdot|s_t) \,\|\, \pi(\cdot|s_t))$, or
    $\|b(s_t) - \pi(s_t)\|^2 / 2\sigma^2$ if either is deterministic: the divergence
    of normal numbers around both actions.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from rl_core.actor import Actor, ActorLoader, distribution_class
from rl_core.algorithm import PolicyLossAddOn
from rl_core.batch import ReplayBatch, RolloutBatch
from rl_core.config import NonNegative, Positive, check_argument, checked_arguments
from rl_core.errors import CheckpointError, ConfigError
from rl_core.gradients import masked_mean
from rl_core.nn.distributions import Deterministic, Distribution
from rl_core.spaces import check_same_space


def policy_divergence(other: Distribution, policy: Distribution, action_std: float = 1.0) -> Tensor:
    """Eq. (3), shape `(*batch,)`.

    Args:
        other: b, a constant.
        policy: π, of the same class unless one of both is deterministic.
        action_std: σ, in units of the actor's actions.

    Raises:
        DataError: when the classes differ.
    """
    if isinstance(other, Deterministic) or isinstance(policy, Deterministic):
        distance = (other.mode() - policy.mode()).square().sum(-1)
        return distance / (2.0 * action_std**2)
    return other.kl_divergence(policy)


class OtherPolicies(PolicyLossAddOn):
    """Base of the terms that compare the policy with others.

    Args:
        policies: feed-forward ones on the same spaces: directories of runs, or actors, which are
            copied. They do not learn, and are kept in checkpoints.
        weights: w, above 0, brought to a sum of 1; None weighs all alike.
        loss_weight: c, at least 0.
        action_std: σ, above 0, for deterministic policies, in units of the learner's actions.
        load_actor: reads the actor of a run; `make` and the command line give it. Only directories
            need it.

    Attributes:
        metric: what the term is called among the metrics.
        shares: w after `setup`, shape `(K,)`.

    Raises:
        ConfigError: for values that are out of range or do not fit each other.
    """

    metric: ClassVar[str]
    shares: Tensor
    _learner: tuple[Actor]

    @checked_arguments()
    def __init__(
        self,
        policies: Sequence[str | Actor],
        weights: Sequence[Positive] | None = None,
        loss_weight: NonNegative = 1.0,
        action_std: Positive = 1.0,
        *,
        load_actor: ActorLoader | None = None,
    ) -> None:
        super().__init__()
        if not policies:
            raise ConfigError("policies must be a list of at least one run directory or actor")
        if weights is not None and len(weights) != len(policies):
            raise ConfigError(f"weights: got {len(weights)} for {len(policies)} policies")
        self.policies = tuple(policies)
        self.weights = None if weights is None else tuple(weights)
        self._load_actor = load_actor
        self.loss_weight = loss_weight
        self.action_std = action_std

    def setup(self, actor: Actor, device: torch.device) -> None:
        """Load or copy the policies.

        Raises:
            CheckpointError: when a run has no readable checkpoint, or is of other spaces.
            ConfigError: when a policy is recurrent, or its divergence from the actor's has no
                formula, or ``action_std`` has no effect.
            SpaceError: when an actor is for other spaces.
        """
        self.others = nn.ModuleList(
            self._frozen(index, actor, device) for index in range(len(self.policies))
        )
        given = torch.tensor(self.weights or [1.0] * len(self.policies), device=device)
        self.register_buffer("shares", given / given.sum(), persistent=False)
        self._learner = (actor,)  # in a tuple, as it is not a submodule of this one
        learned = distribution_class(actor)
        has_distances = actor.action_spec.dtype.is_floating_point
        families = [distribution_class(cast("Actor", other)) for other in self.others]
        if self.action_std != 1.0 and Deterministic not in (learned, *families):
            raise ConfigError(
                f"action_std={self.action_std} has no effect here, because no policy is "
                "deterministic; leave it out"
            )
        for index, family in enumerate(families):
            is_deterministic = Deterministic in (family, learned)
            if not (has_distances if is_deterministic else family is learned):
                other_kind = ", or a deterministic one" if has_distances else ""
                raise ConfigError(
                    f"policies[{index}] chooses by a {family.__name__}, but the learning policy by "
                    f"a {learned.__name__}, and there is no divergence between the two; expected "
                    f"a policy of the same kind{other_kind}"
                )

    def compute_loss_term(
        self,
        batch: RolloutBatch | ReplayBatch,
        distribution: Distribution,
        info: Mapping[str, Tensor],
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return c times what the term makes of the divergences from the others."""
        divergences = []
        for other in self.others:
            assert isinstance(other, Actor)
            theirs, _ = other.distribution(batch.observation, {})
            if Deterministic in (type(theirs), type(distribution)):
                (learner,) = self._learner  # whose actions may have other units
                theirs = Deterministic(learner.from_env_action(other.to_env_action(theirs.mode())))
            divergences.append(policy_divergence(theirs, distribution, self.action_std))
        term = self.loss_weight * self.combine(divergences, batch.mask)
        return term, {self.metric: term}

    @abstractmethod
    def combine(self, divergences: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Return the term without c, 0-dim.

        Args:
            divergences: Eq. (3) for each other policy, of the batch's shape.
            mask: which samples count.
        """

    @property
    def uses_objects(self) -> bool:
        """Whether a policy was given as an object."""
        return any(isinstance(policy, Actor) for policy in self.policies)

    @property
    def loaded_actors(self) -> Mapping[str, Actor]:
        """The policies that were given as directories of runs."""
        pairs = zip(self.policies, self.others, strict=True)
        return {k: cast("Actor", other) for k, other in pairs if isinstance(k, str)}

    def _frozen(self, index: int, actor: Actor, device: torch.device) -> Actor:
        """Load or copy a policy for the spaces of an actor."""
        policy = self.policies[index]
        if isinstance(policy, Actor):
            for space in ("observation_space", "action_space"):
                check_same_space(getattr(policy, space), getattr(actor, space), f"actor's {space}")
            other = copy.deepcopy(policy).to(device)
        elif self._load_actor is None:
            raise ConfigError(
                f"policies[{index}] is the directory '{policy}', which only an algorithm that is "
                "built by name reads; give the actor itself: load_actor of rl_train loads it"
            )
        else:
            try:
                other = self._load_actor(policy)
            except CheckpointError as error:
                raise CheckpointError(f"policies[{index}]: {error}") from error
        if other.is_recurrent:
            raise ConfigError(
                f"policies[{index}] is recurrent, and cannot be compared with, because batches "
                "hold no states of it; expected a feed-forward one"
            )
        return other.eval().requires_grad_(False)


@final
class AttractionKL(OtherPolicies):
    """Draw the policy toward the nearest of some others.

    Args:
        policies: feed-forward ones on the same spaces: directories of runs, or actors, which are
            copied. They do not learn, and are kept in checkpoints.
        weights: w, above 0, brought to a sum of 1; None weighs all alike.
        loss_weight: c, at least 0.
        action_std: σ, above 0, for deterministic policies, in units of the learner's actions.
        load_actor: reads the actor of a run; `make` and the command line give it. Only directories
            need it.

    Raises:
        ConfigError: for values that are out of range or do not fit each other.
    """

    metric = "loss/attraction"

    def combine(self, divergences: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Eq. (1) without c."""
        means = torch.stack([masked_mean(divergence, mask) for divergence in divergences])
        return (means - self.shares.log()).amin()


@final
class RepulsionKL(OtherPolicies):
    """Push the policy away from others.

    Args:
        policies: feed-forward ones on the same spaces: directories of runs, or actors, which are
            copied. They do not learn, and are kept in checkpoints.
        weights: w, above 0, brought to a sum of 1; None weighs all alike.
        loss_weight: c, at least 0.
        max_divergence: D of Eq. (2), above 0: further away than this nothing pushes, since a
            divergence has no upper bound.
        action_std: σ, above 0, for deterministic policies, in units of the learner's actions.
        load_actor: reads the actor of a run; `make` and the command line give it. Only directories
            need it.

    Raises:
        ConfigError: for values that are out of range or do not fit each other.
    """

    metric = "loss/repulsion"

    def __init__(
        self,
        policies: Sequence[str | Actor],
        weights: Sequence[float] | None = None,
        loss_weight: float = 1.0,
        max_divergence: float = 5.0,
        action_std: float = 1.0,
        *,
        load_actor: ActorLoader | None = None,
    ) -> None:
        super().__init__(policies, weights, loss_weight, action_std, load_actor=load_actor)
        check_argument("max_divergence", max_divergence, Positive)
        self.max_divergence = max_divergence

    def combine(self, divergences: Sequence[Tensor], mask: Tensor) -> Tensor:
        """Eq. (2) without c."""
        bounded = [divergence.clamp(max=self.max_divergence) for divergence in divergences]
        return -(self.shares * torch.stack([masked_mean(each, mask) for each in bounded])).sum()
