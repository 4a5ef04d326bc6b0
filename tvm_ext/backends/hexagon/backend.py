"""The row of Hexagon DSPs."""

from __future__ import annotations

from tvm_ext.backends.backend import Backend
from tvm_ext.backends.common import COMMON
from tvm_ext.backends.hexagon.target import complete, is_hexagon

HEXAGON = Backend(name="hexagon", accepts=is_hexagon, phases=COMMON, complete=complete)
