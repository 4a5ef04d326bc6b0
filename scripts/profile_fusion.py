"""Measure the blocks of models whose fusion pays only sometimes, and note them in the file that comes with the package.

Run on a quiet machine: python scripts/profile_fusion.py [--path PATH] [NAME ...]

Names are those of the zoo and of the fusion benchmark; all of them without a name. An entry that is there is kept;
delete the file to begin anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.fusion_latency import OURS, imported
from scripts.study_models import SOURCE
from tests.zoo import ZOO, get
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.compiler import lower
from tvm_ext.fusion.relax.latency import SHIPPED
from tvm_ext.options import PipelineOptions


def main() -> None:
    """Read the command line, measure model by model, print how many entries there are."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--path", type=Path, default=SHIPPED)
    arguments = parser.parse_args()
    for name in arguments.names or dict.fromkeys([*ZOO, *SOURCE]):
        if name in ZOO and (reason := get(name).missing()):
            print(f"{name:20}{reason}", flush=True)
            continue
        start = time.perf_counter()
        mod, _ = imported(name)
        lower(mod, native_target(), PipelineOptions(**OURS, fuse_profiles=arguments.path))
        entries = json.loads(arguments.path.read_text())["entries"] if arguments.path.is_file() else {}
        print(f"{name:20}{len(entries):6} entries, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
