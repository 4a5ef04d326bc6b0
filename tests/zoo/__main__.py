"""``python -m tests.zoo`` lists the models; ``python -m tests.zoo NAME ...`` prints the paths of their ONNX files."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tests.zoo import ZOO, get


def main(names: Sequence[str]) -> int:
    """List all models, or build those named; 1 if a model cannot be had, 2 if there is none of that name."""
    if not names:
        width = max(map(len, ZOO))
        for entry in ZOO.values():
            state = entry.missing() or ("slow" if entry.slow else "")
            print(f"{entry.name:{width}}  {entry.kind:8} {entry.family:12} {state}".rstrip())
        return 0
    for name in names:
        try:
            entry = get(name)
        except KeyError as error:
            print(error.args[0], file=sys.stderr)
            return 2
        if reason := entry.missing():
            print(reason, file=sys.stderr)
            return 1
        print(entry.onnx_path())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
