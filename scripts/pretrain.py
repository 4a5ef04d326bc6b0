"""Train a cost model on what tuning databases hold, for kernels of other networks.

Run: python scripts/pretrain.py FOLDER ... -o FILE

The folders are those of ``tvm-ext tune --work-dir``, of one machine. Records of kernels that the rules do not take
today are passed over. ``tvm-ext tune --tuner evolution_pretrained --pretrained FILE`` uses the result; as
``tuners/pretrained/cpu_kernels.npz`` it becomes part of the package.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tvm_ext.backends.cpu.target import native_target
from tvm_ext.errors import TvmExtError
from tvm_ext.tuning.pretraining import pretrain


def main() -> int:
    """Read the folders, train, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        found = pretrain(arguments.folders, native_target())
    except TvmExtError as error:
        print(error, file=sys.stderr)
        return 1
    found.save(arguments.output)
    for kind in found.notes["structures"]:
        print(f"{kind['spaces']:4} kernels, {kind['measurements']:6} measurements: {', '.join(kind['knobs'])}")
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
