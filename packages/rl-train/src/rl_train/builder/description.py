"""From parts that were composed by hand to the recipe that names them."""

from rl_core.algorithm import AnyAlgorithm
from rl_core.config import CUSTOM, ComponentSpec, Recipe, encode
from rl_core.env import VecEnv
from rl_core.storage import AnyStorage
from rl_train.builder.components import describe_component, record_actors
from rl_train.trainer.config import TrainerConfig


def describe(
    envs: VecEnv,
    algorithm: AnyAlgorithm,
    storage: AnyStorage,
    config: TrainerConfig,
    seed: int,
) -> Recipe:
    """Write the recipe of parts that are there already.

    What was made by a registered name is recorded by it; the user's own objects are recorded as
    ``custom`` and must be given again when the run is loaded.

    Args:
        envs: environments.
        algorithm: with its actor.
        storage: the storage.
        config: of the trainer.
        seed: of the run.
    """
    trainer = encode(config)
    assert isinstance(trainer, dict)
    actors = record_actors(algorithm.add_ons.loaded_actors)
    return Recipe(
        env=envs.component or ComponentSpec("env", CUSTOM, {}),
        actor=describe_component("actor", algorithm.actor),
        algorithm=describe_component("algorithm", algorithm),
        storage=describe_component("storage", storage),
        trainer=trainer,
        seed=seed,
        device=str(algorithm.device),
        resolved={"actors": dict(actors)} if actors else {},
    )
