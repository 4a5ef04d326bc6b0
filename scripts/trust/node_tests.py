"""ONNX's own node tests through the whole compiler; writes docs/onnx.md.

Each test is compiled twice: with all inputs fed, as the test gives them, and with those that are parameters by name
(shapes, axes, pads, scales, ...) as constants, as exporters write them. It has passed when one of the two agrees with
the outputs that the test holds and neither is wrong.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from scripts.trust.isolated import Outcome, run_isolated
from tvm_ext.bench.sections import read_sections

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "onnx.md"

# Inputs that exporters write as constants, by their name in the operator's schema.
PARAMETERS = frozenset(
    """
    K M axes axis block_shape depth dft_length ends frame_length frame_step image_shape iou_threshold k limit delta
    max_output_boxes_per_class output_shape pads ratio repeats roi scales score_threshold shape size sizes split start
    starts steps target_shape training_mode num_mel_bins sample_rate lower_edge_hertz upper_edge_hertz window
    constant_value values input_shape B W w R r b P zero_point y_zero_point x_zero_point a_zero_point b_zero_point
    w_zero_point y_scale x_scale w_scale a_scale b_scale scale bias input_mean input_var mean var slope indices
    sequence_lens min max
    """.split()
)

# Operators whose first input, or only one, is a parameter in real models.
ALL_PARAMETERS = frozenset(
    ["ConstantOfShape", "Range", "HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix", "Constant"]
)

_UNROUNDED = (
    "takes the size times the scale, unrounded, for the distance between the corners; onnxruntime and PyTorch take the "
    "number of elements"
)
DISPUTED = dict.fromkeys(
    ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    _UNROUNDED,
)
"""Tests whose outputs contradict what exporters mean, each with the reason. They count as disputed, and not as passed,
where the compiled model gives what onnxruntime gives."""

FAILED = ("wrong", "other", "crashed", "hung", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--only", metavar="REGEX", default="", help="tests whose name matches")
    parser.add_argument(
        "--go-on", action="store_true", help="with --only: of the other tests, keep what the result file holds"
    )
    parser.add_argument("--workers", type=int, default=1)


@functools.cache
def cases() -> dict[str, Any]:
    """Every node test of the installed ``onnx``, by name."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases()}


def measure(arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run the tests; give one row a test, and the shares."""
    names = [name for name in cases() if re.search(arguments.only, name)]
    tasks = [(name, form) for name in names for form in ("fed", "constant")]
    outcomes: dict[tuple[str, str], Outcome] = {}
    for index, outcome in run_isolated(
        run_case,
        tasks,
        workers=arguments.workers,
        preload=("tvm_ext.compiler", "tvm_ext.frontend.onnx.importing", "scripts.trust.node_tests"),
    ):
        outcomes[tasks[index]] = outcome
        if index % 200 == 0:
            print(f"{len(outcomes)} of {len(tasks)}", file=sys.stderr, flush=True)
    rows = [row(name, outcomes) for name in names]
    if arguments.go_on:
        rows = _with_earlier(rows, arguments.json)
    if arguments.go_on or not arguments.only:
        PAGE.write_text(page(rows))
    held = [item for item in rows if item["held"]]
    states = Counter(item["state"] for item in held)
    everything = Counter(item["state"] for item in rows)
    return rows, {
        "node_tests": len(rows),
        "node_tests_held": len(held),
        "node_tests_passed": states["passed"],
        "node_tests_passed_share": round(states["passed"] / max(len(held), 1), 4),
        "node_tests_disputed": everything["disputed"],
        "node_tests_wrong": everything["wrong"],
        "node_tests_crashed": everything["crashed"] + everything["hung"] + everything["memory"],
        "node_tests_other": everything["other"],
    }


def _with_earlier(rows: Sequence[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Add the rows of an earlier run for the tests that were not run; those it lacks are named."""
    earlier = [section for section in read_sections(path, "trust") if section["part"] == "node_tests"]
    known = max(earlier, key=lambda section: str(section["date"]))["rows"] if earlier else []
    found = {item["test"]: {"detail": "", **item} for item in known} | {item["test"]: item for item in rows}
    missing = [name for name in cases() if name not in found]
    if missing:
        sys.exit(f"{path} lacks {len(missing)} tests, {missing[0]} among them; run those, too, or all without --go-on")
    return [{**found[name], "unheld": unheld_types(case.model)} for name, case in cases().items()]


def row(name: str, outcomes: dict[tuple[str, str], Outcome]) -> dict[str, Any]:
    """Put the two runs of a test together."""
    states = {}
    details = {}
    for form in ("fed", "constant"):
        outcome = outcomes[name, form]
        states[form], details[form] = outcome.result or (outcome.state, outcome.detail)
    model = cases()[name].model
    if states["constant"] == "same":
        states["constant"], details["constant"] = states["fed"], details["fed"]
    failed = [form for form in states if states[form] in FAILED]
    passed = [form for form in states if states[form] == "passed"]
    form = (failed or passed or ["constant"])[0]
    unheld = unheld_types(model)
    return {
        "test": name,
        "operator": tested_operator(name, model),
        "held": not unheld,
        "unheld": unheld,
        "state": states[form],
        "fed": states["fed"],
        "constant": states["constant"],
        "detail": details[form],
    }


def tested_operator(name: str, model: onnx.ModelProto) -> str:
    """Name of the operator that a test is of: in an expanded test, of the one whose definition it runs."""
    original = cases().get(name.partition("_expanded")[0])
    node = (original.model if original else model).graph.node[0]
    return f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


# ----------------------------------------------------------------------------------------------------- in the workers


def run_case(task: tuple[str, str]) -> tuple[str, str]:
    """Compile and run one form of a test; give its state and a detail."""
    import tvm_ext
    from tvm_ext.errors import TvmExtError

    name, form = task
    case = cases()[name]
    inputs, outputs = case.data_sets[0]
    model, feeds = formed(name, case.model, inputs, form)
    if form == "constant" and len(feeds) == len(model_inputs(case.model)):
        return "same", ""
    try:
        shapes = {key: array.shape for key, array in feeds.items() if isinstance(array, np.ndarray)}
        compiled = tvm_ext.compile(model, input_shapes=shapes)
        found = compiled.run(feeds)
    except TvmExtError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:  # what this script looks for
        return "other", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    state, detail = compared(case.model, list(found.values()), outputs, case.rtol, case.atol)
    if state == "wrong" and name in DISPUTED and agrees_with_onnxruntime(model, feeds, list(found.values())):
        return "disputed", DISPUTED[name]
    return state, detail


def agrees_with_onnxruntime(model: onnx.ModelProto, feeds: dict[str, np.ndarray], found: Sequence[np.ndarray]) -> bool:
    """Whether onnxruntime gives these outputs, too."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return compared(model, found, session.run(None, feeds), 1e-3, 1e-5)[0] == "passed"


def model_inputs(model: onnx.ModelProto) -> list[str]:
    """Names of the inputs of a test."""
    return [value.name for value in model.graph.input]


def formed(
    name: str, model: onnx.ModelProto, inputs: Sequence[Any], form: str
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Give the model of a test in one of the two forms, with what is still to be fed."""
    given = dict(zip(model_inputs(model), inputs, strict=True))
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    constants = parameters(name, model) if form == "constant" else set()
    for constant in constants:
        value = given.pop(constant)
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value)))
        tensor.name = constant
        changed.graph.initializer.append(tensor)
    kept = [value for value in changed.graph.input if value.name in given]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    feeds = {
        key: numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
        for key, value in given.items()
    }
    return changed, feeds


def parameters(name: str, model: onnx.ModelProto) -> set[str]:
    """Names of the inputs that are parameters, of the operator or of an operator of its definition."""
    names = set(model_inputs(model))
    found = set()
    original = cases().get(name.partition("_expanded")[0])
    if original is not None and original.name != name:  # the expanded form of a test has the inputs of the original
        return parameters(original.name, original.model) & names
    types = {value.name: value.type for value in model.graph.input}
    versions = {item.domain if item.domain != "ai.onnx" else "": item.version for item in model.opset_import}
    for node in model.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        if not onnx.defs.has(node.op_type, versions.get(domain, 1), domain):
            continue
        declared = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain).inputs
        for position, actual in enumerate(node.input):
            if actual not in names or not types[actual].HasField("tensor_type") or not declared:
                continue
            formal = declared[min(position, len(declared) - 1)].name
            if (position and formal in PARAMETERS) or node.op_type in ALL_PARAMETERS:
                found.add(actual)
    return found


def compared(
    model: onnx.ModelProto, found: Sequence[np.ndarray], expected: Sequence[Any], rtol: float, atol: float
) -> tuple[str, str]:
    """Compare as ONNX's own runner does; of random operators shape and dtype alone."""
    random = any(is_random(node, model) for node in model.graph.node)
    for value, ours, theirs in zip(model.graph.output, found, expected, strict=True):
        theirs = numpy_helper.to_array(theirs) if isinstance(theirs, onnx.TensorProto) else np.asarray(theirs)
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            what = f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"
            return "wrong", f"output {value.name!r} is {what}"
        if random:
            continue
        if ours.dtype.kind == "f" or ours.dtype.name.startswith(("bfloat", "float")):
            one, other = ours.astype(np.float64), theirs.astype(np.float64)
            slack = max(atol, 2 * step(theirs.dtype) * np.max(np.abs(other), where=np.isfinite(other), initial=0))
            with np.errstate(all="ignore"):
                close = np.isclose(one, other, rtol=rtol, atol=slack, equal_nan=True)
        else:
            close = np.equal(ours, theirs)
        if not np.all(close):
            where = np.argwhere(~np.asarray(close))[0] if np.ndim(close) else ()
            index = tuple(int(item) for item in where)
            what = f"{ours[index]} for {theirs[index]} at {list(index)}"
            return "wrong", f"output {value.name!r}: {int(np.sum(~np.asarray(close)))} of {ours.size} differ, {what}"
    return "passed", ""


def step(dtype: np.dtype) -> float:
    """Distance from one to the next number of a float type."""
    return float(ml_dtypes.finfo(dtype).eps)


def is_random(node: onnx.NodeProto, model: onnx.ModelProto) -> bool:
    """Whether ONNX says that an operator draws random numbers."""
    schema = onnx.defs.get_schema(node.op_type, domain=node.domain if node.domain != "ai.onnx" else "")
    return schema.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic


# -------------------------------------------------------------------------------------------------------------- types


def unheld_types(model: onnx.ModelProto) -> list[str]:
    """Types among a test's inputs and outputs, and the tensors inside it, that TVM cannot hold."""
    found = set()
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            found.add(str(kind).removesuffix("_type"))
        elif not can_hold(value.type.tensor_type.elem_type):
            found.add(type_name(value.type.tensor_type.elem_type))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and not can_hold(attribute.t.data_type):
                found.add(type_name(attribute.t.data_type))
            if attribute.name in ("to", "dtype") and not can_hold(attribute.i):
                found.add(type_name(attribute.i))
    return sorted(found)


def type_name(number: int) -> str:
    """Name of an element type."""
    return onnx.TensorProto.DataType.Name(number).lower()


@functools.cache
def can_hold(number: int) -> bool:
    """Whether stock TVM gives the elements of a tensor back as they were: fed, reversed by a kernel, and read."""
    import tvm
    from tvm import relax

    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
        array = np.asarray([1, 2, 1], dtype)
        variable = relax.Var("x", relax.TensorType((3,), dtype.name))
        builder = relax.BlockBuilder()
        with builder.function("main", [variable]):
            builder.emit_func_output(builder.emit(relax.op.flip(variable, 0)))
        machine = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
        returned = machine["main"](tvm.runtime.tensor(array)).numpy()
    except Exception:  # whatever TVM says to a type that it does not have
        return False
    return returned.dtype == dtype and bool(np.all(returned == array[::-1]))


# --------------------------------------------------------------------------------------------------------------- page


def page(rows: Sequence[dict[str, Any]]) -> str:
    """Write the table of operators and the list of tests that have not passed."""
    held = [item for item in rows if item["held"]]
    passed = sum(item["state"] == "passed" for item in held)
    types = sorted({name for item in rows for name in item["unheld"]})
    lines = [
        "# ONNX operators",
        "",
        f"The node tests of onnx {onnx.__version__}, each compiled for the CPU and compared with the outputs that it",
        "holds, by the tolerances of ONNX's own test runner (relative 1e-3, absolute 1e-7, or two units in the",
        "last place of the largest number where that is more). Each is run twice: with all its inputs fed, and with",
        "those that are parameters (shapes, axes, pads, scales, weights, ...) as constants, as exporters write them.",
        "It has *passed* when one of the two agrees and neither is wrong; it is *refused* when the compiler says in",
        "one sentence which node it cannot take and why. Random operators are compared by shape and dtype.",
        "",
        "A type counts as one that TVM can hold when stock TVM gives three elements of it back as they were: fed,",
        f"reversed by a compiled kernel, and read. By that rule it cannot hold: {', '.join(types)}.",
        "",
        f"Of {len(rows)} tests {len(held)} use only types that TVM can hold; {passed} of these pass "
        f"({100 * passed / max(len(held), 1):.1f} %).",
        "Written by `python scripts/check_trust.py node_tests`.",
        "",
        "## By operator",
        "",
        "| operator | tests | passed | refused | not held |",
        "|---|---:|---:|---:|---:|",
    ]
    by_operator: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for item in rows:
        by_operator[item["operator"]].append(item)
    for operator, items in sorted(by_operator.items()):
        inside = [item for item in items if item["held"]]
        good, refused = (sum(item["state"] == state for item in inside) for state in ("passed", "refused"))
        lines.append(f"| {operator} | {len(items)} | {good} | {refused or ''} | {len(items) - len(inside) or ''} |")
    lines += [
        "",
        "## Tests that are refused",
        "",
        "With the reason that the compiler gives. Where a test is *disputed*, the compiled",
    ]
    lines += ["model gives what onnxruntime gives, and the test something else.", ""]
    lines += list(refusals(held))
    lines += [
        "",
        "## Only with constants",
        "",
        "Tests that pass when their parameters are constants, and are refused otherwise.",
        "",
    ]
    by_operator.clear()
    for item in held:
        if item["state"] == "passed" and item["fed"] == "refused":
            by_operator[item["operator"]].append(item)
    lines += [f"- {operator}: {len(items)}" for operator, items in sorted(by_operator.items())]
    return "\n".join(lines) + "\n"


def refusals(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One line for each reason, with its tests."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for item in rows:
        if item["state"] != "passed":
            reasons[f"{item['state']}: {item['detail']}"].append(item["test"])
    for reason, tests in sorted(reasons.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        yield f"- {reason.replace('|', chr(92) + '|')}: {', '.join(f'`{test}`' for test in tests)}"
