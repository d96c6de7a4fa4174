from my_plugin import Corridor, Reinforce, StopAtReturn
from rl_algos_onpolicy import OnPolicyActor
from rl_storages import RolloutStorage
from rl_train import Trainer


def test_a_run_ends_when_it_is_good_enough() -> None:
    for threshold, is_whole in ((-1.0, False), (2.0, True)):
        envs = Corridor(num_envs=4, seed=0)
        actor = OnPolicyActor(envs.single_observation_space, envs.single_action_space)
        callback = StopAtReturn(threshold)
        trainer = Trainer(
            envs, Reinforce(actor), RolloutStorage(num_steps=32), seed=0, callbacks=[callback]
        )
        result = trainer.train(total_steps=2000)
        assert (result.total_steps >= 2000) == is_whole
