"""``tvm-ext vta board`` and ``tvm-ext vta serve``: accelerators on boards."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tvm_ext.backends.vta.board.device import Device

config_option = click.option(
    "--config",
    "config_name",
    metavar="NAME|FILE",
    default="pynq",
    show_default=True,
    help="What the board's bitstream is: a shipped configuration or a JSON file.",
)
memory_option = click.option(
    "--memory",
    default="udmabuf",
    show_default=True,
    metavar="udmabuf|libcma|reserved:ADDRESS:BYTES",
    help="Where the accelerator's memory comes from.",
)
tracker_option = click.option("--tracker", metavar="HOST:PORT", help="RPC tracker that knows the board.")
key_option = click.option("--key", default="vta", show_default=True, help="The board's key at the tracker.")
simulated_option = click.option("--simulated", is_flag=True, help="No hardware: a device that the simulator plays.")


def local_device(config_name: str, memory: str, simulated: bool) -> Device:
    """Open the accelerator of this machine."""
    from tvm_ext.backends.vta.board.device import open_device
    from tvm_ext.backends.vta.board.simulated import simulated_device
    from tvm_ext.backends.vta.config import load_config

    config = load_config(config_name)
    return simulated_device(config) if simulated else open_device(config, memory)


def refuse_local_options(elsewhere: str) -> None:
    """Refuse options of this machine's accelerator beside ``elsewhere``, which says that the board is another's."""
    context = click.get_current_context()
    for name, option in (("config_name", "--config"), ("memory", "--memory"), ("simulated", "--simulated")):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} is about this machine, and the board is where {elsewhere} says")


@click.command()
@config_option
@memory_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0: all.")
@click.option("--port", default=9091, show_default=True, type=click.IntRange(1, 65535), help="Port to listen at.")
@tracker_option
@key_option
@simulated_option
def serve(config_name: str, memory: str, host: str, port: int, tracker: str | None, key: str, simulated: bool) -> None:
    """Serve this board's accelerator to other machines through TVM's RPC, until interrupted.

    Whoever reaches the port can run any code here: listen in trusted networks only.
    """
    from tvm_ext.backends.vta.board.board import Board
    from tvm_ext.backends.vta.board.rpc import BoardFunctions
    from tvm_ext.system.rpc import connect_tracker, parse_address
    from tvm_ext.system.rpc_server import keep_serving, start_server

    address = parse_address(tracker) if tracker else None
    if address is not None:
        connect_tracker(address).close()
    open_device = partial(local_device, config_name, memory, simulated)
    device = open_device()
    Board(device).self_test()
    device.close()
    server = start_server(host, port, address, key, partial(BoardFunctions.serve, open_device))
    with keep_serving(server):
        click.echo(
            f"VTA {device.config.name}, HW_VER {device.config.hw_ver}: self-test passed; serving at {host}:{port}"
        )


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--rpc", metavar="HOST:PORT", help="The board's server (tvm-ext vta serve).")
@tracker_option
@key_option
@config_option
@memory_option
@simulated_option
def board(
    files: tuple[Path, ...],
    rpc: str | None,
    tracker: str | None,
    key: str,
    config_name: str,
    memory: str,
    simulated: bool,
) -> None:
    """Test a board, and compare recorded streams on it with their recordings.

    The board is the one this runs on, unless --rpc or --tracker says where it is; a server knows its --config.
    """
    import numpy as np

    from tvm_ext.backends.vta.board.board import Board
    from tvm_ext.backends.vta.board.rpc import connect, request
    from tvm_ext.backends.vta.simulate.replay import load_recording
    from tvm_ext.errors import CheckError
    from tvm_ext.system.rpc import parse_address

    if rpc and tracker:
        raise click.UsageError("--rpc and --tracker are two ways to find a board; give one of them")
    if rpc or tracker:
        refuse_local_options("--rpc" if rpc else "--tracker")
    if rpc:
        device: Device = connect(parse_address(rpc))
    elif tracker:
        device = request(parse_address(tracker), key)
    else:
        device = local_device(config_name, memory, simulated)
    accelerator = Board(device)
    accelerator.self_test()
    click.echo(f"VTA {device.config.name}, HW_VER {device.config.hw_ver}: self-test passed")
    for file in files:
        recording = load_recording(file, device.config)
        result = accelerator.run(recording.words, recording.before, recording.base)
        wrong = np.flatnonzero(result.dram != recording.after)
        if wrong.size:
            at = int(wrong[0])
            raise CheckError(
                f"{file}: the board differs from the recording first at address "
                f"{recording.place(recording.base + at)}: expected "
                f"{recording.after[at]:#04x}, found {result.dram[at]:#04x}; {wrong.size} bytes differ"
            )
        click.echo(f"{file}: PASS ({len(recording.words)} instructions, {result.seconds * 1e6:.0f} us)")
    device.close()
