"""The attacks by name: a line each."""

from __future__ import annotations

from importlib import import_module

from benchmarks.attack.base import Attack

ATTACKS = {
    "damage": "benchmarks.attack.damage:DamageAttack",
    "life": "benchmarks.attack.life:LifeAttack",
    "writers": "benchmarks.attack.writers:WritersAttack",
    "encode": "benchmarks.attack.encode:EncodeAttack",
    "server": "benchmarks.attack.server:ServerAttack",
    "batch_search": "benchmarks.attack.searched:BatchSearchAttack",
    "sweeps": "benchmarks.attack.searched:SweepAttack",
    "training": "benchmarks.attack.training:TrainingAttack",
}
"""A name → "module:class"."""


def attack_of(name: str) -> type[Attack]:
    """Return the class of an attack; raises `ValueError` for an unknown name."""
    if name not in ATTACKS:
        raise ValueError(f"no attack '{name}': there are {', '.join(ATTACKS)}")
    module, _, title = ATTACKS[name].partition(":")
    found: type[Attack] = getattr(import_module(module), title)
    return found
