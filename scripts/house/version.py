"""Compile and run one model in a process of its own, with whichever version of the package ``PYTHONPATH`` begins with.

Orders come as lines of JSON, answers go as lines of JSON: ``{"compile": MODEL, "inputs": NPZ, "options": {...}}`` gives
the seconds of the compilation and a hash of each output; ``{"run": N}`` gives the seconds of N runs. Nothing of this
repository is imported but the package itself, so that earlier versions of it can be measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import numpy as np


def main() -> None:
    """Answer orders until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    import tvm_ext

    compile_model = tvm_ext.compile  # which imports TVM: not part of a compilation
    answers.write(json.dumps({"package": tvm_ext.__file__}) + "\n")
    answers.flush()
    compiled: Any = None
    arrays: dict[str, np.ndarray] = {}
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any]
        if "compile" in order:
            with np.load(order["inputs"]) as file:
                arrays = dict(file)
            shapes = {name: array.shape for name, array in arrays.items()}
            start, before = time.perf_counter(), time.process_time()
            compiled = compile_model(order["compile"], input_shapes=shapes, **order["options"])
            answer = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - before}
            found = compiled.run(arrays)
            values = found.values() if isinstance(found, dict) else found
            answer["outputs"] = [hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() for value in values]
        else:
            looks = []
            for _ in range(order["run"]):
                start = time.perf_counter()
                compiled.run(arrays)
                looks.append(time.perf_counter() - start)
            answer = {"seconds": looks}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
