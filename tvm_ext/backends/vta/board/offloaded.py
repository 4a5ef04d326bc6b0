"""Run the programs inside a compiled model on a board, in place of the simulator that is compiled into it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.backends.vta.board.board import Board
from tvm_ext.backends.vta.board.rpc import connect
from tvm_ext.errors import OptionError, VTADeviceError
from tvm_ext.system.rpc import parse_address

SCHEME = "vta://"
PREFIX = "vta_run_"
"""Kernels that run programs are called so, then the shape of the matrix unit and the generation of the encoding."""


class BoardRunner:
    """What a virtual machine asks before each kernel (``set_instrument``): programs go to the board.

    Parameters
    ----------
    board : Board
    """

    def __init__(self, board: Board) -> None:
        self.board = board
        self.programs = 0
        self.seconds = 0.0

    def __call__(self, _function: Any, symbol: str, is_before: bool, _result: Any, *arguments: Any) -> int:
        """Run a program and skip the kernel; raises VTADeviceError where the board is another VTA."""
        kinds = relax.VMInstrumentReturnKind
        if not is_before or not symbol.startswith(PREFIX):
            return int(kinds.NO_OP)
        config = self.board.config
        expected = f"{PREFIX}{config.name}_isa{config.isa}"
        if symbol != expected:
            raise VTADeviceError(
                f"the model was compiled for VTA {symbol.removeprefix(PREFIX)}, the board is "
                f"{expected.removeprefix(PREFIX)}; compile it for the board (--target vta-...)"
            )
        words, dram, limits, *_, status = arguments
        image = dram.numpy()
        result = self.board.run(words.numpy().view(np.uint64).reshape(-1, 2), image, int(limits.numpy()[0]))
        self.programs += 1
        self.seconds += result.seconds
        dram.copyfrom(result.dram)
        status.copyfrom(np.zeros_like(status.numpy()))
        return int(kinds.SKIP_RUN)


def open_runner(address: str) -> BoardRunner:
    """Connect to the board behind an address ``vta://HOST:PORT``.

    Raises
    ------
    OptionError
        If the address is none.
    RemoteError, VTADeviceError
        If nobody answers there, or no board is served.
    """
    if not address.startswith(SCHEME):
        raise OptionError(f"device {address!r} is none that can be run on; expected {SCHEME}HOST:PORT")
    return BoardRunner(Board(connect(parse_address(address.removeprefix(SCHEME)))))
