"""Classic image classifiers: the graphs that travel in the onnx package without their weights, given made-up
ones.
"""

from __future__ import annotations

import importlib.util
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from tests.zoo import weights
from tests.zoo.entry import Entry
from tests.zoo.inputs import picture

# name: file, name of the input, factor on the last layer's weights (chosen so that the logits' deviation is
# near 0.5: a peaked softmax magnifies rounding errors), slow
_MODELS = {
    "resnet50": ("resnet50", "gpu_0/data_0", 2.0, True),
    "vgg19": ("vgg19", "data_0", 2.5, True),
    "densenet121": ("densenet121", "data_0", 4.0, True),
    "inception_v1": ("inception_v1", "data_0", 2.5, True),
    "inception_v2": ("inception_v2", "data_0", 2.0, True),
    "squeezenet": ("squeezenet", "data_0", 4.0, False),
    "shufflenet": ("shufflenet", "gpu_0/data_0", 1.2, False),
    "alexnet": ("bvlc_alexnet", "data_0", 0.75, True),
    "zfnet": ("zfnet512", "gpu_0/data_0", 1.5, True),
}

# Sixteen convolutions in a row by Winograd's algorithm: logits, of deviation 0.5, differ by 7e-6 from those of double
# precision (onnxruntime's by 2e-6). The most probable classes, up to nine times the deviation of all, decide the
# largest difference, by 2e-5 of themselves.
_TOLERANCES = {"vgg19": 3e-4}


def _file(stem: str) -> Path:
    package = importlib.util.find_spec("onnx")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "backend/test/data/light" / f"light_{stem}.onnx"


def _build(name: str, stem: str, head_gain: float) -> onnx.ModelProto:
    return weights.fill_weights(onnx.load(_file(stem)), seed=zlib.crc32(name.encode()), head_gain=head_gain)


def _draw(input_name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {input_name: picture(rng, (1, 3, 224, 224))}


ENTRIES = [
    Entry(
        name,
        "cnn",
        "light",
        build=partial(_build, name, stem, head_gain),
        draw=partial(_draw, input_name),
        files=(partial(_file, stem),),
        recipe=(Path(__file__), Path(weights.__file__)),
        slow=slow,
        tolerance=_TOLERANCES.get(name, Entry.tolerance),
    )
    for name, (stem, input_name, head_gain, slow) in _MODELS.items()
]
