import sys
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench.as_ours import (
    TRIFLES,
    WAYS,
    divide_by_population_std,
    hold_statistics,
    move_targets_after_steps,
)
from bench.causes import causes_table, changed_rows
from bench.learning import all_plans
from bench.plan import PlanRow, load_plans
from bench.results import Record

from rl_train.builder import compose

Batch = namedtuple("Batch", ["advantages"])  # as Stable-Baselines3 has it

ROW = PlanRow(
    algorithm="ppo",
    env="Pendulum-v1",
    steps=10,
    seeds=(0, 1),
    options={"ours": {}, "sb3": {"learning_rate": 0.001}},
)


def test_statistics_are_included_after_the_update() -> None:
    events: list[Any] = []
    statistics = SimpleNamespace(update=lambda values: events.append(values.tolist()))
    normalizer = SimpleNamespace(
        obs_rms=statistics, normalize_obs=lambda value: 10.0 * value, get_original_obs=lambda: 3.0
    )
    model = SimpleNamespace(
        get_vec_normalize_env=lambda: normalizer, train=lambda: events.append("learned")
    )
    hold_statistics(model)
    for number in (1.0, 2.0, 3.0):
        statistics.update(np.array([[number]]))
    model.train()
    assert events == ["learned", [[1.0], [2.0]]]
    assert model._last_obs == 30.0  # with the new statistics
    statistics.update(np.array([[4.0]]))
    model.train()
    assert events[2:] == ["learned", [[3.0]]]


def test_targets_move_after_gradient_steps_and_count_these(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    utils = SimpleNamespace(polyak_update=lambda source, target, tau: events.append(tau))
    monkeypatch.setitem(sys.modules, "stable_baselines3.common.utils", utils)

    def train(gradient_steps: int, batch_size: int) -> None:
        model._n_updates += gradient_steps
        events.append(batch_size)

    network = SimpleNamespace(parameters=list)
    model = SimpleNamespace(
        target_update_interval=2,
        train=train,
        tau=0.5,
        _n_updates=0,
        q_net=network,
        q_net_target=network,
    )
    move_targets_after_steps(model)
    model.train(3, batch_size=32)
    assert events == [32, 32, 0.5, 32]
    model.train(1, batch_size=32)
    assert events[4:] == [32, 0.5]


def test_trifles_are_those_that_they_are_called_by() -> None:
    running = SimpleNamespace(count=1e-4)
    normalizer = SimpleNamespace(obs_rms=running, ret_rms=running)
    model = SimpleNamespace(get_vec_normalize_env=lambda: normalizer)
    for change in TRIFLES.values():
        change(model)
    assert running.count == 0.0


def test_advantages_get_the_populations_standard_deviation() -> None:
    buffer = SimpleNamespace(get=lambda size: iter([Batch(torch.tensor([1.0, 3.0]))]))
    model = SimpleNamespace(rollout_buffer=buffer, normalize_advantage=True)
    divide_by_population_std(model)
    (batch,) = model.rollout_buffer.get(2)
    assert batch.advantages.tolist() == [-1.0, 1.0]
    assert model.normalize_advantage is False


def test_every_way_changes_a_row_of_the_plans() -> None:
    changed = changed_rows(load_plans(all_plans()))
    of_peer = [pair for pair in changed if "sb3" in pair[0].options]
    assert {row.note for row, _ in of_peer} == set(WAYS)
    for row, plain in of_peer:
        assert row.options == {"sb3": {**plain.options["sb3"], "as_ours": row.note}}
        assert (row.algorithm, row.env, row.steps) == (plain.algorithm, plain.env, plain.steps)
        has_statistics = plain.options["sb3"].get("normalize", False)
        assert has_statistics or row.note != "statistics once per update", plain.label


def test_rows_of_ours_change_options_and_keep_the_others() -> None:
    changed = changed_rows(load_plans(all_plans()))
    rows = {row.note: (row, plain) for row, plain in changed if "ours" in row.options}
    row, plain = rows["layers after the memory, uniform weights"]
    assert set(row.options) == {"ours"}
    sections = plain.run("ours", 0).sections()
    actor = {**sections["actor"], "recurrent_first": True, "initial_weights": "uniform"}
    assert row.options["ours"] == {**sections, "actor": actor}
    assert row.train_command.startswith("hatch run")  # no preset has these options
    for row, _ in rows.values():
        compose(row.algorithm, row.env, row.run("ours", 0).sections())


def test_the_table_compares_the_peer_with_itself() -> None:
    (changed, plain), *_ = changed_rows([ROW])
    found = [
        Record(
            run=row.run("sb3", seed),
            returns=np.array([value]),
            steps_per_second=1.0,
            machine="m",
            curve=np.array([[2.0, 0.0], [10.0, value]]),
            is_comparable=True,
        )
        for row, values in ((changed, (4.0, 6.0)), (plain, (3.0, 3.0)))
        for seed, value in enumerate(values)
    ]
    text = causes_table([(changed, plain)], {record.run.key: record for record in found})
    assert (
        "| `ppo/Pendulum-v1` | SB3 | population's standard deviation | 2 | 2 | 5.0 | 3.0 "
        "| +2.0 [+1.0, +3.0] | 1.00 | 0.333 | 2.5 | 1.5 | 1.00 |" in text
    )
    plain_curves = [replace(record, curve=np.empty((0, 2))) for record in found]
    text = causes_table([(changed, plain)], {record.run.key: record for record in plain_curves})
    assert "| 0.333 | - | - | - |" in text
    own = {record.run.key: replace(record, is_comparable=False) for record in found}
    assert causes_table([(changed, plain)], own) == "Nothing was run yet."
    other = replace(ROW, env="E-v0")
    assert changed_rows([other]) == []
    assert causes_table([(changed, plain)], {}) == "Nothing was run yet."
