"""``tvm-ext serve``: let other machines measure candidates on this one."""

from __future__ import annotations

import os

import click


@click.command()
@click.option("--tracker", metavar="HOST:PORT", required=True, help="RPC tracker that tells others of this machine.")
@click.option("--key", required=True, help="What machines of this kind are called.")
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen at.")
@click.option("--port", default=9090, show_default=True, type=click.IntRange(1, 65435), help="First port to try.")
@click.option("--seen-as", metavar="HOST", help="Address of this machine for others. [default: as the tracker sees it]")
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of a kernel. [default: TVM_NUM_THREADS, or physical cores]"
)
def command(tracker: str, key: str, host: str, port: int, seen_as: str | None, threads: int | None) -> None:
    """Serve this machine to `tvm-ext tune --tracker`, through TVM's RPC, until interrupted.

    Each candidate runs in a process of its own, so that one that crashes costs only itself. Whoever reaches the port
    can run any code here: serve in trusted networks only.
    """
    from tvm_ext.system.rpc import connect_tracker, parse_address
    from tvm_ext.system.rpc_server import keep_serving, start_server
    from tvm_ext.system.threads import threads as kernel_threads

    address = parse_address(tracker)
    connect_tracker(address).close()  # TVM's server tries for ever to register at what is none
    os.environ["TVM_NUM_THREADS"] = str(threads or kernel_threads())
    server = start_server(host, port, address, key, seen_as=seen_as)
    with keep_serving(server):
        click.echo(f"serving as {key!r} of the tracker at {address}; port {server.port}")
