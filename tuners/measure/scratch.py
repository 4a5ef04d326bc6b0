"""A folder for what lies on the disk while candidates are measured."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from pathlib import Path

from tvm_ext.system.cleanup import temporary_folder


class ScratchFolder:
    """A folder of its own, gone with this object or at the end of the process, however that comes.

    Attributes
    ----------
    path : Path

    Raises
    ------
    OSError
        If it cannot be made.
    """

    def __init__(self) -> None:
        stack = contextlib.ExitStack()
        self.path = stack.enter_context(temporary_folder(Path(tempfile.gettempdir()), "tune"))
        self.path.chmod(0o700)  # code is loaded from it
        self.close = weakref.finalize(self, stack.close)
