"""An environment, an algorithm, a sampler, a logger and a callback for the rl toolbox."""

from my_plugin.by_return import ByReturn as ByReturn
from my_plugin.corridor import Corridor as Corridor
from my_plugin.csv_logger import CsvLogger as CsvLogger
from my_plugin.reinforce import Reinforce as Reinforce
from my_plugin.reinforce import ReinforceConfig as ReinforceConfig
from my_plugin.stop_at_return import StopAtReturn as StopAtReturn
