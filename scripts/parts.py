"""Scripts of several parts: one module a part, which measures and gives rows and a summary."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.results import RESULTS
from tvm_ext.bench.sections import update_result
from tvm_ext.system.files import check_output


def parts(name: str) -> list[str]:
    """List the parts of a script: the modules of its folder that have a ``measure``."""
    files = sorted((Path(__file__).parent / name).glob("[a-z]*.py"))
    return [file.stem for file in files if "\ndef measure(" in file.read_text(encoding="utf-8")]


def run_part(name: str, faults: Sequence[str], script: str | None = None) -> int:
    """Measure the part that the command line names, and write its section of ``docs/results/NAME.json``.

    Parameters
    ----------
    name : str
        Of the result, and of the folder of the parts.
    faults : sequence of str
        How the keys of a summary end whose value has to be 0.
    script : str, optional
        What the user runs; ``check_NAME.py`` by default.

    Returns
    -------
    int
        The exit code: 1 when something that must be none was found, 2 when no part is named.
    """
    script, names = script or f"check_{name}.py", parts(name)
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print(f"usage: {script} PART ...; parts are {', '.join(names)}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"scripts.{name}.{sys.argv[1]}")
    parser = argparse.ArgumentParser(prog=f"{script} {sys.argv[1]}", description=str(module.__doc__).splitlines()[0])
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json")
    module.add_arguments(parser)
    arguments = parser.parse_args(sys.argv[2:])
    check_output(arguments.json, [])
    rows, summary = module.measure(arguments)
    update_result(arguments.json, name=name, part=sys.argv[1], rows=rows, summary=summary)
    width = max(map(len, summary), default=0)
    for key, value in summary.items():
        print(f"{key:{width}}  {value}")
    return int(any(value > 0 for key, value in summary.items() if key.endswith(tuple(faults))))
