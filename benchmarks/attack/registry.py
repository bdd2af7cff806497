"""The attacks by name: a line each."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from benchmarks.attack.base import Attack


class Entry(NamedTuple):
    """Where an attack is."""

    place: str
    """As "module:class" below `benchmarks.attack`."""
    weight: int
    """Its share of the time."""


ATTACKS = {
    "damage": Entry("damage:DamageAttack", 3),
    "life": Entry("life:LifeAttack", 3),
    "encode": Entry("encode:EncodeAttack", 5),
    "server": Entry("server:ServerAttack", 3),
    "batch_search": Entry("searched:BatchSearchAttack", 2),
    "sweeps": Entry("searched:SweepAttack", 2),
    "training": Entry("training:TrainingAttack", 2),
}


def entry_of(name: str) -> Entry:
    """Return where an attack is; raises `ValueError` for an unknown name."""
    if name not in ATTACKS:
        raise ValueError(f"no attack '{name}': there are {', '.join(ATTACKS)}")
    return ATTACKS[name]


def attack_of(name: str) -> type[Attack]:
    """Return the class of an attack; raises `ValueError` for an unknown name."""
    module, _, title = entry_of(name).place.partition(":")
    found: type[Attack] = getattr(import_module(f"benchmarks.attack.{module}"), title)
    return found
