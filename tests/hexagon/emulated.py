"""What tests of Hexagon kernels share: a target, and a reason to skip where the emulator is missing."""

import pytest

from tvm_ext.backends.hexagon.toolchain import complaint
from tvm_ext.target import resolve_target

needs_emulator = pytest.mark.skipif(bool(complaint()), reason=complaint())
TARGET = resolve_target("hexagon-v67")
