"""The `rl` command.

A flag of ``rl train`` becomes a field of a config in this order: `options` lists the flags that the
configs have, `parser` files what was typed in tables, `train_arguments` makes them a recipe, and
`rl_core.config.decode` reads the fields.
"""

__version__ = "0.1.0"
