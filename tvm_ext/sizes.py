"""Sizes of dimensions that a model leaves open, as a user names them: ``batch=1,seq=128``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm_ext.conditions import LARGEST, holds, limits_of_symbols, smallest_extents
from tvm_ext.errors import OptionError
from tvm_ext.tensor_spec import TensorSpec

FORM = "write batch=1,seq=128"


def parse_size(text: str) -> dict[str, int]:
    """Read a size such as ``batch=1,seq=128``.

    Raises
    ------
    OptionError
        If it is none.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, separator, extent = (piece.strip() for piece in part.partition("="))
        if not name or not separator or not extent.isdecimal() or name in found:
            raise OptionError(f"option --size: {text!r:.100} is no size of open dimensions; {FORM}")
        found[name] = int(extent)
    return found


def all_extents(size: Mapping[str, int], specs: Sequence[TensorSpec], conditions: Sequence[str] = ()) -> dict[str, int]:
    """Give every open dimension its extent: what was asked for, else the smallest that fits.

    Parameters
    ----------
    size : mapping from str to int
        Extents of dimensions, by their names.
    specs : sequence of TensorSpec
        The inputs of the model, with their ranges.
    conditions : sequence of str
        What the model asks of its dimensions (see :mod:`tvm_ext.conditions`).

    Returns
    -------
    dict from str to int
        Of dimensions that are computed from others, too.

    Raises
    ------
    OptionError
        If the model has no such open dimension, or does not take this size.
    """
    least, most, _ = limits_of_symbols(specs)
    for name, extent in size.items():
        if name not in least:
            has = f"it has {', '.join(least)}" if least else "all its extents are fixed"
            raise OptionError(f"option size: the model has no open dimension {name!r}; {has}")
        if not isinstance(extent, int) or not least[name] <= extent <= most[name]:
            is_above = isinstance(extent, int) and extent > LARGEST
            until = "" if most[name] == LARGEST and not is_above else most[name]
            raise OptionError(
                f"option size: {name} = {extent!r} is not in the range of that dimension, {least[name]}..{until}"
            )
    found = smallest_extents(specs, size, conditions)
    for condition in conditions:
        if not holds(condition, found):
            raise OptionError(f"option size: {spelled(found)} does not fulfil {condition}, as the model asks; {FORM}")
    return found


def spelled(size: Mapping[str, int]) -> str:
    """Spell a size."""
    return ", ".join(f"{name}={extent}" for name, extent in size.items())
