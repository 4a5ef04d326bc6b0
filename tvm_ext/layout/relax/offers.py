"""What could have been chosen on the way to a module: kept with it, for a search over whole networks."""

from __future__ import annotations

import json
from typing import Any

import tvm

from tvm_ext.layout.choices import Choices, Offer

OFFERS_ATTRIBUTE = "tvm_ext.choices"
"""Attribute of a module: what could have been chosen, as JSON."""


def with_offers(mod: tvm.IRModule, choices: Choices) -> tvm.IRModule:
    """Note in a module what could have been chosen, beside what is noted there."""
    if not choices.offers:
        return mod
    found = {offer.key: offer for offer in (*offers_of(mod), *choices.offers.values())}
    rows = [[offer.key, offer.options, offer.default, offer.work, offer.seconds] for offer in found.values()]
    return mod.with_attr(OFFERS_ATTRIBUTE, json.dumps(rows))


def offers_of(mod: tvm.IRModule) -> tuple[Offer, ...]:
    """List what could have been chosen on the way to a module."""
    if not mod.attrs or OFFERS_ATTRIBUTE not in mod.attrs:
        return ()
    rows: list[Any] = json.loads(str(mod.attrs[OFFERS_ATTRIBUTE]))
    return tuple(
        Offer(key, tuple(options), default, int(work), tuple(seconds)) for key, options, default, work, seconds in rows
    )
