"""The off-policy actor."""

from rl_algos_offpolicy.actor.actor import OffPolicyActor as OffPolicyActor
from rl_algos_offpolicy.actor.actor import check_policy as check_policy
from rl_algos_offpolicy.actor.config import OffPolicyActorConfig as OffPolicyActorConfig
