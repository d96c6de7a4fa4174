"""An algorithm, a storage and an environment for the rl toolbox."""

from my_plugin.corridor import Corridor as Corridor
from my_plugin.reinforce import Reinforce as Reinforce
from my_plugin.reinforce import ReinforceConfig as ReinforceConfig
from my_plugin.step_list import StepList as StepList
