"""The main job on real input: compile a trained text recogniser and a classic CNN, read a photographed page, compare.

Run it through ``make demo``, or ``python scripts/demo.py --output DIR``. It writes the artifacts, the measurements
(``bench.json``) and the ``inspect`` page of the detection network to DIR.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import tvm_ext
from scripts import ocr
from tests.zoo import get
from tvm_ext.bench import compare
from tvm_ext.bench.record import write_result

DETECTION_SHAPE, LINE_WIDTH = (384, 768), 640
ENGINES = ("tvm", "tvm_ext", "onnxruntime")
console = Console(width=120)


def compiled(name: str, model: onnx.ModelProto, shape: tuple[int, ...], folder: Path) -> tvm_ext.CompiledModel:
    """Compile one network, save it, and load it back from disk."""
    start = time.perf_counter()
    (model_input,) = [i for i in model.graph.input if i.name not in {t.name for t in model.graph.initializer}]
    artifact = tvm_ext.compile(model, input_shapes={model_input.name: shape}).save(folder / name, force=True)
    console.print(f"compiled {name} in {time.perf_counter() - start:.1f} s -> {artifact}")
    return tvm_ext.load(artifact)


def read_page(picture: np.ndarray, folder: Path) -> list[str]:
    """Find and read the text lines of a picture."""
    detection = compiled("detection", get("ppocr_det").onnx_model(), (1, 3, *DETECTION_SHAPE), folder)
    recognition_model = get("ppocr_rec").onnx_model()
    recognition = compiled("recognition", recognition_model, (1, 3, ocr.LINE_HEIGHT, LINE_WIDTH), folder)
    (alphabet,) = [item.value for item in recognition_model.metadata_props if item.key == "character"]
    characters = [*alphabet.split("\n"), " "]

    (probability,) = detection.run([ocr.detection_input(picture, DETECTION_SHAPE)]).values()
    lines = []
    for box in ocr.text_boxes(probability[0, 0], picture.shape[:2]):
        (scores,) = recognition.run([ocr.recognition_input(picture, box, LINE_WIDTH)]).values()
        lines.append(ocr.decode(scores[0], characters))
    return [line for line in lines if line.strip()]


def measure(folder: Path, images: dict[str, np.ndarray]) -> None:
    """Print the comparison of the networks on the images they read and write it to ``bench.json``."""
    table = Table(title="Latency, batch 1, float32")
    for column in ("network", "engine", "median ms", "times the best", "kernels", "planned MiB", "relative error"):
        table.add_column(column, justify="left" if column in ("network", "engine") else "right")
    rows, notes, summary = [], [], {}
    for name, image in images.items():
        entry = get(name)
        (first,) = entry.inputs(0)
        result = compare(
            entry.onnx_model(),
            ENGINES,
            inputs={first: image},
            budget=8.0,
            noise=False,
        )
        notes += [f"{name}: {note}" for note in result.notes]
        rows += [{"network": name, **row} for row in result.json_rows()]
        summary |= {f"{name}_{key}": value for key, value in result.summary().items()}
        for row in result.rows:
            if row.error is not None:
                table.add_row(name, row.label, f"[red]{row.error}", "", "", "", "")
                continue
            table.add_row(
                name,
                row.label,
                f"{row.median_ms:.2f}",
                f"{row.ratio_to_best:.2f}",
                "" if row.kernels is None else str(row.kernels),
                "" if row.planned_bytes is None else f"{row.planned_bytes / 2**20:.1f}",
                "" if row.relative_error is None else f"{row.relative_error:.1e}",
            )
        table.add_section()
    console.print(table)
    write_result(folder / "bench.json", name="demo", rows=rows, summary=summary, notes=notes)


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo_out"), help="folder for everything it writes")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("ppocr_det", "ppocr_rec", "resnet50"):
        reason = get(name).missing()
        if reason:
            sys.exit(f"the demonstration needs {name}: {reason}")

    from skimage import color, data

    picture = color.gray2rgb(data.page() / 255.0)
    console.print(f"a photographed page, {picture.shape[1]} x {picture.shape[0]} pixels (from scikit-image)")
    for line in read_page(picture, folder):
        console.print(f"  [bold]{line}", highlight=False)

    console.print("a classic CNN (ResNet-50, made-up weights) on a photograph of a cup of coffee")
    classifier = compiled("resnet50", get("resnet50").onnx_model(), (1, 3, 224, 224), folder)
    photograph = ocr.detection_input(data.coffee() / 255.0, (224, 224))
    (scores,) = classifier.run([photograph]).values()
    console.print(f"  class {scores.argmax()} of {scores.size}, score {scores.max():.3f}")

    whole = ocr.Box(0, 0, picture.shape[0] // 5, picture.shape[1])  # the heading
    images = {
        "ppocr_det": ocr.detection_input(picture, DETECTION_SHAPE),
        "ppocr_rec": ocr.recognition_input(picture, whole, LINE_WIDTH),
        "resnet50": photograph,
    }
    measure(folder, images)
    from tvm_ext.cli.main import run

    page = folder / "inspect.html"
    shape = ",".join(map(str, (1, 3, *DETECTION_SHAPE)))
    model = folder / "detection.onnx"
    onnx.save(get("ppocr_det").onnx_model(), model)
    code = run(["inspect", str(model), "--input-shape", f"x:{shape}", "-o", str(page)])
    if code:
        sys.exit(code)
    console.print(f"what the compiler did to the detection network: {page}")


if __name__ == "__main__":
    main()
