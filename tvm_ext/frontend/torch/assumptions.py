"""What PyTorch took for granted of open extents when it traced a program, as conditions that a compiled model checks.

PyTorch traces an open extent as two or more, so that ``x[:, :1]`` has one element there. A compiled model takes extents
of 0 and 1, too, where all its shapes can be told with them; where they cannot, it relies on more, and says so.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.conditions import names_of

TRACED_FROM = 2
"""The least extent that torch traces a dynamic dimension with."""

_NUMBER = re.compile(r"T\.int64\((-?\d+)\)")


def assume_at_least(importer: Any, extent: Any, count: int) -> bool:
    """Make it a condition of the model that an extent is so large, if need be.

    Models are imported without such conditions first, and rely on as little as will do; see ``importer.relied_on``.

    Parameters
    ----------
    importer
        Its ``least`` and ``conditions`` are added to.
    extent : tvm.tirx expression
        An open extent, or one that is computed from some.
    count : int

    Returns
    -------
    bool
        Whether it is so large; not where it is computed from values.
    """
    if bounded(extent, least=importer.least).can_prove(extent >= count):
        return True
    if count > importer.relied_on:
        importer.wanted = True
        return False
    if not _noted(importer, f"{_spelled(extent)} >= {count}", extent):
        return False
    if isinstance(extent, tirx.Var):
        importer.least[extent.name] = count
    return True


def assume_at_most(importer: Any, extent: Any, other: Any) -> bool:
    """Make it a condition of the model that an extent is not larger than another one, which PyTorch demands.

    Returns
    -------
    bool
        Whether it is not; not known where one is computed from values.
    """
    if bounded(extent, other, least=importer.least).can_prove(extent <= other):
        return True
    return _noted(importer, f"{_spelled(extent)} <= {_spelled(other)}", extent, other)


def assume_equal(importer: Any, extent: Any, other: Any) -> bool:
    """Make it a condition of the model that two extents are equal, which PyTorch demands and does not look at.

    Returns
    -------
    bool
        Whether they are; not known where one is computed from values.
    """
    if bounded(extent, other, least=importer.least).can_prove(extent == other):
        return True
    return _noted(importer, f"{_spelled(extent)} == {_spelled(other)}", extent, other)


def _noted(importer: Any, condition: str, *extents: Any) -> bool:
    names = {variable.name for extent in extents for variable in tirx.analysis.undefined_vars(extent)}
    try:
        if not names or names_of(condition) != names or not names <= importer.open_names:
            return False
    except ValueError:
        return False
    importer.conditions.append(condition)
    return True


def bounded(*expressions: Any, least: Any = None) -> Any:
    """Make an analyzer that knows how large extents are at least: 0, or more by their names."""
    analyzer = tvm.sym.Analyzer()
    for expression in expressions:
        for variable in tirx.analysis.undefined_vars(expression):
            low = (least or {}).get(variable.name, 0)
            analyzer.update(variable, tvm.sym.ConstIntBound(low, tvm.sym.ConstIntBound.POS_INF), True)
    return analyzer


def _spelled(extent: Any) -> str:
    """Spell an extent in Python's notation."""
    text = _NUMBER.sub(r"\1", str(tvm.sym.Analyzer().simplify(extent)))
    return text.replace("T.min(", "min(").replace("T.max(", "max(")
