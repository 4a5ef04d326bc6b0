"""How many images of an open batch are worth computing at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx


def images_at_once(
    mod: tvm.IRModule, function: relax.Function, batch: tirx.Var, target: tvm.target.Target
) -> Sequence[int]:
    """List the numbers of images to make functions for, the largest first; the last one is 1."""
    return (1,)
