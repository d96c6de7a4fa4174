"""Benchmarks: how fast the toolbox trains, stores and replays, and how well it learns.

`speed.py`, `replay.py`, `learning.py`, `cloning.py` and `parity.py` are run by path, or as
``hatch run bench:speed`` and so on. Everything that is measured runs in a process of its own, one
at a time, started by `child` and carried out by `worker.py`; `parity.py` only calculates.
"""
