"""What DDPG, TD3 and SAC share: critics step first, and then the policy by what they learned."""

from typing import ClassVar, Generic, TypeVar

from rl_algos_offpolicy.actor import OffPolicyActor
from rl_algos_offpolicy.config import OffPolicyConfig
from rl_core.algorithm import Algorithm
from rl_core.batch import ReplayBatch
from rl_core.gradients import ParameterGroup

ConfigT = TypeVar("ConfigT", bound=OffPolicyConfig)


class ActorCritic(Algorithm[ConfigT, ReplayBatch], Generic[ConfigT]):
    """Base of algorithms whose policy maximizes what critics say of its actions.

    The critics are a group of parameters that steps first. The policy's loss is computed by what
    they have learned then, at the pace that a subclass says. Its config has a learning rate for
    each group, such as ``critic_learning_rate``.
    """

    actor: OffPolicyActor
    takes_add_ons: ClassVar[bool] = True

    @property
    def policy_every(self) -> int:
        """Gradient steps of the critics per step of the policy."""
        return 1

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """Give critics and policy an optimizer each, and let the policy follow."""
        return (
            self.parameter_group("critic", ("actor.critics",)),
            self.parameter_group("policy", ("actor.policy", "add_ons")),
        )

    def parameter_group(self, name: str, modules: tuple[str, ...]) -> ParameterGroup:
        """Return a group with the learning rate and the bound that the config says.

        Args:
            name: of the group; ``critic`` steps first, all others after it, at the policy's pace.
            modules: whose parameters it has.
        """
        is_first = name == "critic"
        return ParameterGroup(
            name=name,
            modules=modules,
            learning_rate=f"{name}_learning_rate",
            max_grad_norm=self.config.if_set("max_grad_norm"),
            optimizer=self.config.optimizer,
            every=1 if is_first else self.policy_every,
            after=None if is_first else "critic",
        )
