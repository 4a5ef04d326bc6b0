"""``tvm-ext vta``: instruction streams of the VTA accelerator."""

from __future__ import annotations

from pathlib import Path

import click

from tvm_ext.cli.common import json_flag, print_json
from tvm_ext.cli.vta_board import board, serve
from tvm_ext.cli.vta_model import profile, run

config_option = click.option(
    "--config",
    "config_name",
    metavar="NAME|FILE",
    help="Accelerator: a shipped configuration or a JSON file. Left out: what a recording names, else sim.",
)


max_steps_option = click.option(
    "--max-steps",
    default=1 << 28,
    show_default=True,
    type=click.IntRange(1, (1 << 62) - 1),
    help="Most steps of GEMM and ALU that a stream may ask for; one that asks for more is refused before it runs.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Disassemble, run and time instruction streams of the VTA accelerator."""


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_option
@click.option("--uops", is_flag=True, help="Show the micro-ops that each LOAD UOP brings (recordings only).")
def disasm(file: Path, config_name: str | None, uops: bool) -> None:
    """Print the instructions of FILE, a .npz recording, or 16 bytes an instruction."""
    from tvm_ext.backends.vta.isa.assembler import disassemble
    from tvm_ext.backends.vta.isa.instructions import decode_program
    from tvm_ext.backends.vta.simulate.listing import load_stream, naming, uop_lines

    stream = load_stream(file, config_name)
    click.echo(f"; {file}: VTA {stream.config.name}, HW_VER {stream.config.hw_ver}")
    if stream.description:
        click.echo(f"; {stream.description}")
    with naming(file):
        program = decode_program(stream.words, stream.config)
    for index, instruction in enumerate(program):
        click.echo(f"{disassemble(instruction):<90} ; {index}".rstrip())
        if uops:
            for line in uop_lines(instruction, stream):
                click.echo(f"; {line}")


@command.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@config_option
@max_steps_option
@json_flag
def replay(files: tuple[Path, ...], config_name: str | None, max_steps: int, as_json: bool) -> None:
    """Run recorded streams on both simulators and compare DRAM: PASS, or the first address that differs."""
    from tvm_ext.backends.vta.config import load_config
    from tvm_ext.backends.vta.simulate.replay import load_recording
    from tvm_ext.backends.vta.simulate.replay import replay as run_both
    from tvm_ext.errors import CheckError

    config = load_config(config_name) if config_name else None
    rows, failure = [], ""
    for file in files:
        recording = load_recording(file, config)
        results, difference = run_both(recording, max_steps)
        row = {
            "file": str(file),
            "pass": difference is None,
            "instructions": len(recording.words),
            "steps": results["reference"].steps,
            "bytes_moved": results["reference"].bytes_moved,
            "difference": None if difference is None else vars(difference),
        }
        rows.append(row)
        if difference is None:
            text = f"PASS ({len(recording.words)} instructions, {results['reference'].steps['gemm']} GEMM steps)"
        else:
            text = (
                f"the {difference.simulator} simulator differs from the recording first at address "
                f"{recording.place(difference.address)}: expected {difference.expected:#04x}, found "
                f"{difference.found:#04x}; {difference.count} bytes differ"
            )
            failure = failure or f"{file}: {text}"
        if not as_json and (difference is None or len(files) > 1):
            click.echo(f"{file}: {text}")
    if as_json:
        print_json(rows)
    if failure:
        raise CheckError(failure)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_option
@click.option(
    "--costs", "costs_name", default="chisel", show_default=True, help="Implementation whose cycles to count."
)
@click.option("--picture", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw the three modules.")
@json_flag
def cycles(file: Path, config_name: str | None, costs_name: str, picture: Path | None, as_json: bool) -> None:
    """Count the cycles of a stream, a .npz recording or 16 bytes an instruction, and show the three modules."""
    from tvm_ext.backends.vta.analysis.checks import check_fields
    from tvm_ext.backends.vta.isa.instructions import decode_program
    from tvm_ext.backends.vta.simulate.listing import load_stream, naming
    from tvm_ext.backends.vta.timing.costs import costs_named
    from tvm_ext.backends.vta.timing.cycles import time_program
    from tvm_ext.backends.vta.timing.timeline import draw_timeline, text_timeline

    if picture is not None:  # its imports bring all of TVM, which takes far longer than counting cycles
        from tvm_ext.bench.chart import check_chart
        from tvm_ext.system.files import check_output

        check_chart(picture)
        check_output(picture, [file])
    costs = costs_named(costs_name)
    stream = load_stream(file, config_name)
    with naming(file):
        check_fields(stream.words, stream.config)
        timeline = time_program(decode_program(stream.words, stream.config), stream.config, costs)
    if picture is not None:
        draw_timeline(timeline, picture)
    row = {
        "costs": costs.name,
        "cycles": timeline.cycles,
        "seconds": timeline.seconds,
        "gemm_steps": timeline.gemm_steps,
        "occupancy": timeline.occupancy,
        "busy": timeline.busy,
        "bytes_moved": timeline.bytes_moved,
    }
    if as_json:
        print_json(row)
        return
    click.echo(
        f"{file}: {timeline.cycles} cycles ({timeline.seconds * 1e6:.1f} us at {costs.clock_mhz} MHz, {costs.name})"
    )
    click.echo(
        f"GEMM occupancy {timeline.occupancy:.1%}; busy: {_pairs(timeline.busy)}; bytes: {_pairs(timeline.bytes_moved)}"
    )
    click.echo(text_timeline(timeline))


def _pairs(values: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@config_option
@max_steps_option
def lint(file: Path, config_name: str | None, max_steps: int) -> None:
    """List what keeps the stream of FILE, a .npz recording, from meaning the same on boards as on the simulators."""
    from tvm_ext.backends.vta.analysis.linter import lint as find
    from tvm_ext.backends.vta.config import load_config
    from tvm_ext.backends.vta.isa.instructions import decode_program
    from tvm_ext.backends.vta.simulate.replay import load_recording, simulate
    from tvm_ext.errors import CheckError

    recording = load_recording(file, load_config(config_name) if config_name else None)
    simulate(recording, "compiled", max_steps)  # only a stream that runs has a meaning
    program = decode_program(recording.words, recording.config)
    findings = find(program, recording.config, recording.before, recording.base)
    for finding in findings:
        click.echo(f"{file}: {finding}")
    if findings:
        raise CheckError(f"{file}: {len(findings)} places where hardware differs from the simulators")
    click.echo(f"{file}: portable")


command.add_command(board)
command.add_command(serve)
command.add_command(run)
command.add_command(profile)
