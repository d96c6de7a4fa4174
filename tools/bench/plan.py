"""Plans: which runs the learning benchmark makes, as TOML.

A plan is a list of ``[[row]]`` tables. A row is an algorithm on an environment for some steps and
seeds, with a target unless it is only there to compare, and under ``row.ours`` and ``row.sb3`` the
options of each system. With ``preset``, true or a name, steps and our options are those of the
preset.
"""

import hashlib
import json
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from bench.child import Json
from bench.episodes import Episodes

OURS = "ours"
"""The toolbox."""

PEER = "sb3"
"""The system that may be a row's target."""

SB3 = "SB3"
"""What the usual peer is called in tables."""

_PEERS = {None: SB3, "sbx": "SBX"}
"""What peers are called, by the ``library`` of their options."""

SYSTEMS = (OURS, PEER)
"""In the order in which they run."""

_WRITTEN = {"droq": "DroQ", "rainbow": "Rainbow"}
"""Algorithms whose names have small letters in tables."""

METRICS = ("return", "success")
"""What a row may be judged by: the mean return, or the percentage of successful episodes."""

_KEYS = {"algorithm": str, "env": str, "steps": int, "seeds": list}

Key = tuple[str, str, str, int, int, str]
"""System, algorithm, environment, steps, seed and the digest of the options."""


class PlanError(Exception):
    """A plan says something that it cannot mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training run.

    Attributes:
        system: one of `SYSTEMS`.
        algorithm: registered name.
        env: Gymnasium id.
        steps: environment transitions.
        seed: of everything random in it.
        options: of the system, in its own words.
        note: of its row; it makes no other run of it.
    """

    system: str
    algorithm: str
    env: str
    steps: int
    seed: int
    options: Mapping[str, Json]
    note: str = ""

    def __str__(self) -> str:
        label = label_of(self.algorithm, self.env, self.note)
        return f"{self.system} {label}, {self.steps:,} steps, seed {self.seed}"

    @property
    def key(self) -> Key:
        """What makes it the same run as another."""
        return (
            self.system,
            self.algorithm,
            self.env,
            self.steps,
            self.seed,
            options_digest(self.options),
        )

    @property
    def file_name(self) -> str:
        """A name for a file of its own."""
        parts = (*map(str, self.key[:5]), self.key[5])
        return "-".join(part.replace("/", "_") for part in parts)

    def sections(self) -> Mapping[str, Mapping[str, Json]]:
        """Return the options by section, as `rl_train.builder.compose` takes them."""
        return cast("Mapping[str, Mapping[str, Json]]", self.options)

    def as_dict(self) -> dict[str, Json]:
        """Return plain data from which `from_dict` makes an equal run."""
        return {
            "system": self.system,
            "algorithm": self.algorithm,
            "env": self.env,
            "steps": self.steps,
            "seed": self.seed,
            "options": dict(self.options),
            **({"note": self.note} if self.note else {}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Json]) -> "Run":
        """Read what `as_dict` returned; further entries are ignored."""
        return cls(
            system=cast("str", values["system"]),
            algorithm=cast("str", values["algorithm"]),
            env=cast("str", values["env"]),
            steps=cast("int", values["steps"]),
            seed=cast("int", values["seed"]),
            options=cast("dict[str, Json]", values["options"]),
            note=cast("str", values.get("note", "")),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        episodes: of the evaluation of the final policy.
        total_steps: transitions that it took.
        steps_per_second: of the whole training, compilation included, evaluation not.
        curve: step, and mean return of the last 100 training episodes then.
    """

    episodes: Episodes
    total_steps: int
    steps_per_second: float
    curve: Sequence[tuple[int, float]] = ()

    def as_dict(self) -> dict[str, Json]:
        """Return plain data, with as many digits as figures need."""
        return {
            **self.episodes.as_dict(),
            "total_steps": self.total_steps,
            "steps_per_second": round(self.steps_per_second, 2),
            "curve": [[step, value] for step, value in self.curve],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRow:
    """One row of the learning table.

    Attributes:
        algorithm: registered name.
        env: Gymnasium id.
        steps: environment transitions of each run.
        seeds: one run each.
        options: by system.
        target: to be reached by the mean, over seeds, of the metric. `PEER` wants what the peer
            reaches: intervals that overlap, or a higher one. None where nothing is wanted.
        at_most: the target must not be passed instead, as where something has to fail.
        metric: one of `METRICS`.
        note: what tells it from other rows with the same algorithm and environment.
        preset: that our options are; empty for the one without a name, None where they are written
            in the plan.
    """

    algorithm: str
    env: str
    steps: int
    seeds: tuple[int, ...]
    options: Mapping[str, Mapping[str, Json]]
    target: float | str | None = None
    metric: str = "return"
    note: str = ""
    at_most: bool = False
    preset: str | None = None

    @property
    def written(self) -> str:
        """The algorithm's name as its paper writes it."""
        return _WRITTEN.get(self.algorithm, self.algorithm.upper())

    @property
    def label(self) -> str:
        """What tells it from all other rows, and what `select_rows` compares a pattern with."""
        return label_of(self.algorithm, self.env, self.note)

    @property
    def peer(self) -> str:
        """What the peer is called in tables; a dash where there is none."""
        if PEER not in self.options:
            return "-"
        return _PEERS[cast("str | None", self.options[PEER].get("library"))]

    @property
    def command(self) -> str:
        """What makes its runs, and no others."""
        return f"hatch run bench:learning --only {shlex.quote(self.label)}"

    @property
    def train_command(self) -> str:
        """What makes one run of ours, or all runs where no preset has its options."""
        if self.preset is None:
            return self.command
        return f"rl train {self.algorithm} {self.env} --preset {self.preset}".rstrip()

    def run(self, system: str, seed: int) -> Run:
        """Return one of the row's runs."""
        return Run(
            system=system,
            algorithm=self.algorithm,
            env=self.env,
            steps=self.steps,
            seed=seed,
            options=self.options[system],
            note=self.note,
        )


def label_of(algorithm: str, env: str, note: str) -> str:
    """Return such as ``ppo/CartPole-v1``, followed by the note where there is one."""
    return f"{algorithm}/{env} {note}".rstrip()


def load_plans(paths: Iterable[Path]) -> list[PlanRow]:
    """Read plans whose rows go into one table.

    Raises:
        PlanError: when a file is no plan, or two rows have one label.
    """
    rows: dict[str, PlanRow] = {}
    for path in paths:
        for row in load_plan(path):
            if row.label.lower() in rows:
                raise PlanError(f"{path.name}: '{row.label}' is there twice; give one a note")
            rows[row.label.lower()] = row
    return list(rows.values())


def load_plan(path: Path) -> list[PlanRow]:
    """Read a plan.

    Raises:
        PlanError: when the file is no plan; the message names it.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if set(content) != {"row"}:
            raise PlanError(f"got the keys {sorted(content)}; expected [[row]] tables only")
        return [_row(values, number) for number, values in enumerate(content["row"], start=1)]
    except (OSError, tomllib.TOMLDecodeError, PlanError) as error:
        raise PlanError(f"{path.name}: {error}") from error


def select_rows(rows: Sequence[PlanRow], pattern: str) -> list[PlanRow]:
    """Choose the row whose label is the pattern or, where none is, all in which it occurs.

    Args:
        rows: to choose from.
        pattern: such as ``ppo/Cart*`` or ``dqn/LunarLander-v3 double``; in upper or lower case.

    Raises:
        PlanError: when it occurs in none.
    """
    pattern = pattern.lower()
    labels = {row.label.lower(): row for row in rows}
    if pattern in labels:
        return [labels[pattern]]
    found = [row for label, row in labels.items() if fnmatchcase(label, f"*{pattern}*")]
    if not found:
        known = ", ".join(f"'{row.label}'" for row in rows)
        raise PlanError(f"no row matches '{pattern}'; there are {known}")
    return found


def select_runs(rows: Iterable[PlanRow], systems: Iterable[str]) -> list[Run]:
    """List the runs to make: a row at a time, each seed with all systems in turn.

    Args:
        rows: of plans.
        systems: which to run; those that a row has no options of are left out.
    """
    systems = tuple(systems)
    return [
        row.run(system, seed)
        for row in rows
        for seed in row.seeds
        for system in systems
        if system in row.options
    ]


def options_digest(options: Mapping[str, Json]) -> str:
    """Return twelve digits that change with any option, but not with their order."""
    text = json.dumps(options, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _preset(algorithm: str, env: str, name: bool | str) -> dict[str, object]:
    """Return the steps and our options of a preset, under the names of a row."""
    from rl_train.presets import read_preset  # not where a peer is measured

    resolved, sections = read_preset(algorithm, env, name)
    ours = {section: options for section, options in sections.items() if options}
    return {"steps": resolved["total_steps"], OURS: ours}


def _row(values: Mapping[str, object], number: int) -> PlanRow:
    preset = cast("bool | str", values.get("preset", False))
    if preset:
        algorithm, env = str(values.get("algorithm")), str(values.get("env"))
        tuned = _preset(algorithm, env, preset)
        if twice := sorted(set(tuned) & set(values)):
            raise PlanError(f"row {number} has {twice}, which its preset has too")
        values = {**values, **tuned}
    allowed = {*_KEYS, *SYSTEMS, "metric", "note", "target", "at_most", "preset"}
    if unknown := sorted(set(values) - allowed):
        raise PlanError(f"row {number} has unknown keys {unknown}; expected {sorted(allowed)}")
    for name, kind in _KEYS.items():
        if not isinstance(values.get(name), kind):
            raise PlanError(f"row {number} has {name}={values.get(name)!r}; expected {kind}")
    seeds = cast("list[int]", values["seeds"])
    if not seeds or len(set(seeds)) != len(seeds):
        raise PlanError(f"row {number} has seeds={seeds}; expected some, each once")
    if not any(system in values for system in SYSTEMS):
        raise PlanError(f"row {number} has options of no system; expected some of {SYSTEMS}")
    metric = str(values.get("metric", METRICS[0]))
    if metric not in METRICS:
        raise PlanError(f"row {number} has metric={metric!r}; expected one of {METRICS}")
    target, at_most = values.get("target"), values.get("at_most", False)
    if target != PEER and not isinstance(target, int | float | None):
        raise PlanError(f"row {number} has target={target!r}; expected a number, {PEER!r} or none")
    if isinstance(target, str | None) and at_most:
        raise PlanError(f"row {number} has at_most without a number as target")
    if target == PEER and PEER not in values:
        raise PlanError(f"row {number} has target={PEER!r}, but no options of {PEER!r}")
    return PlanRow(
        metric=metric,
        note=str(values.get("note", "")),
        at_most=bool(at_most),
        preset=("" if preset is True else preset) if preset else None,
        algorithm=cast("str", values["algorithm"]),
        env=cast("str", values["env"]),
        steps=cast("int", values["steps"]),
        seeds=tuple(seeds),
        target=float(target) if isinstance(target, int | float) else target,
        options={
            system: cast("dict[str, Json]", values[system])
            for system in SYSTEMS
            if system in values
        },
    )
