"""The off-policy actor, and what its networks are given of a batch."""

from rl_algos_offpolicy.actor.actor import OffPolicyActor as OffPolicyActor
from rl_algos_offpolicy.actor.actor import check_policy as check_policy
from rl_algos_offpolicy.actor.actor import detached as detached
from rl_algos_offpolicy.actor.actor import next_obs_inputs as next_obs_inputs
from rl_algos_offpolicy.actor.actor import obs_and_next_obs_inputs as obs_and_next_obs_inputs
from rl_algos_offpolicy.actor.actor import obs_inputs as obs_inputs
from rl_algos_offpolicy.actor.config import OffPolicyActorConfig as OffPolicyActorConfig
