"""The on-policy actor."""

from rl_algos_onpolicy.actor.actor import OnPolicyActor as OnPolicyActor
from rl_algos_onpolicy.actor.config import OnPolicyActorConfig as OnPolicyActorConfig
