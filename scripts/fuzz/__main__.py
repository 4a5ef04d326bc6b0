"""Random models for a while: ``python -m scripts.fuzz --seconds 600``.

Graphs of any operators are drawn by NNSmith, networks (``--kind networks``) of the blocks that trained ones are made
of, in floats or quantised, for CPUs, or small ones for VTA and Hexagon, in their simulators (``--kind vta``,
``--kind hexagon``). What is wrong, crashes, hangs or is refused is kept in a folder; ``--reduce`` makes such a
file small.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run a campaign, try files again, or reduce them; exit 1 when a model is wrong, crashes or hangs."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long new models are tried")
    parser.add_argument("--first", type=int, help="first seed; by default a new one each time, or behind the last row")
    parser.add_argument("--rows", type=Path, help="file of counts to go on from (JSON lines); a new one by default")
    parser.add_argument(
        "--kind", choices=("graphs", "networks", "vta", "hexagon"), default="graphs", help="what is drawn"
    )
    parser.add_argument("--failures", type=Path, default=Path("fuzz_failures"), help="folder of models that fail")
    parser.add_argument("--again", type=Path, nargs="+", metavar="FILE", help="try kept models again instead")
    parser.add_argument("--reduce", type=Path, nargs="+", metavar="FILE", help="reduce kept models instead")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # NNSmith draws from sets of names
        os.environ |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        os.execv(sys.executable, [sys.executable, "-m", "scripts.fuzz", *sys.argv[1:]])
    from scripts.fuzz import again, campaign
    from scripts.fuzz.seeds import SEEDS

    if arguments.again:
        return again.try_files(arguments.again)
    if arguments.reduce:
        return again.reduce_files(arguments.reduce)
    rows = arguments.rows or arguments.failures / f"rows_{int(time.time())}.jsonl"
    first = int(time.time()) % (SEEDS // 1000) * 1000 if arguments.first is arguments.rows is None else arguments.first
    try:
        made = campaign.run(
            rows, seconds=arguments.seconds, first=first or 0, failures=arguments.failures, kind=arguments.kind
        )
    except campaign.NothingTried as error:
        print(error, file=sys.stderr)
        return 1
    bad = sum(row["counts"].get(kind, 0) for row in made for kind in campaign.BAD)
    print(
        f"{bad} models are wrong, crash or hang; see {arguments.failures}" if bad else "none is wrong, crashes or hangs"
    )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
