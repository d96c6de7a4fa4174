"""Benchmarks: how fast the toolbox trains, and how well it learns, beside its peers.

`speed.py` and `learning.py` are run by path, or as ``hatch run bench:speed`` and
``hatch run bench:learning``. Everything that is measured runs in a process of its own, one at a
time, started by `child` and carried out by `worker.py`.
"""
