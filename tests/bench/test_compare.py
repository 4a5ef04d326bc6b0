from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.bench import conftest as engines
from tests.frontend.onnx.text import graph
from tvm_ext.bench import Contender, compare, course
from tvm_ext.bench.compare import bench_target
from tvm_ext.bench.course import output_errors
from tvm_ext.errors import MissingPackageError, OptionError, TargetError

MakeEngine = Callable[[str, str], Path]


def test_medians_are_those_of_the_engines(make_engine: MakeEngine, mlp: Path) -> None:
    make_engine("quick", engines.SLEEPER.format(seconds=0.010))
    make_engine("slow", engines.SLEEPER.format(seconds=0.040))
    result = compare(mlp, ["quick", "slow"], noise=False)
    quick, slow = result["quick"], result["slow"]
    assert quick.median_ms is not None
    assert slow.median_ms is not None
    # A sleep is never shorter than asked for, and on a busy machine a little longer.
    assert quick.median_ms == pytest.approx(10, rel=0.4)
    assert 10 <= quick.min_ms <= quick.q1_ms <= quick.median_ms <= quick.q3_ms
    assert slow.median_ms == pytest.approx(40, rel=0.4)
    assert slow.ratio_to_best == pytest.approx(slow.median_ms / quick.median_ms)
    assert quick.ratio_to_best == 1.0
    assert (quick.runs, slow.runs) == (len(quick.samples_ms), len(slow.samples_ms))
    assert slow.runs >= 10
    assert quick.runs > slow.runs  # a quick model gets more
    assert (quick.import_seconds, quick.compile_seconds) == (0.25, 0.5)
    assert result.best is quick
    assert result.noise_ratio is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (engines.CRASH_IN_COMPILE, "SIGSEGV while compiling"),
        (engines.CRASH_IN_RUN, "SIGSEGV while running"),
        (engines.ERROR_IN_RUN, "kernel 7 is missing"),
        (engines.BROKEN_IMPORT, "a_package_that_is_not_there"),
    ],
)
def test_a_failing_engine_costs_its_own_row_only(make_engine: MakeEngine, mlp: Path, body: str, words: str) -> None:
    make_engine("good", "")
    make_engine("bad", body)
    result = compare(mlp, ["bad", "good"], noise=False)
    assert words in (result["bad"].error or "")
    assert result["bad"].median_ms is None
    assert result["good"].error is None
    assert result["good"].runs >= 10
    json.dumps(result.json_rows(), allow_nan=False)


def test_an_engine_that_fails_after_some_turns_shows_no_figures(make_engine: MakeEngine, mlp: Path) -> None:
    body = """
    count = 0
    def run(self):
        global count
        count += 1
        if count > 40:
            os.kill(os.getpid(), 11)
        time.sleep(0.01)
    Engine.run = run
    """
    make_engine("tired", body)
    result = compare(mlp, ["tired"], noise=False)
    assert "SIGSEGV while running" in (result["tired"].error or "")
    assert result["tired"].runs == 0
    assert result.best is None


def test_an_engine_that_hangs_is_given_up(make_engine: MakeEngine, mlp: Path) -> None:
    make_engine("good", "")
    make_engine("stuck", engines.HANG)
    start = time.monotonic()
    result = compare(mlp, ["stuck", "good"], noise=False, timeout=2.0)
    assert time.monotonic() - start < 60
    assert "no answer within 2 s while compiling" in (result["stuck"].error or "")
    assert result["good"].error is None


def test_a_slow_engine_gets_fewer_runs_and_says_so(make_engine: MakeEngine, mlp: Path) -> None:
    make_engine("slow", engines.SLEEPER.format(seconds=0.3))
    result = compare(mlp, ["slow"], noise=False, budget=1.0)
    assert result["slow"].runs == 3
    assert "slow: only 3 runs, since one takes 0.3 s" in result.notes


def test_engines_take_turns_and_never_overlap(make_engine: MakeEngine, mlp: Path, tmp_path: Path) -> None:
    body = """
    def run(self):
        start = time.monotonic()
        time.sleep(0.01)
        with open({path!r}, "a") as stream:
            stream.write(f"{{start}} {{time.monotonic()}} {name}\\n")
    Engine.run = run
    """
    log = tmp_path / "runs.txt"
    for name in ("one", "two"):
        make_engine(name, body.format(path=str(log), name=name))
    compare(mlp, ["one", "two"], noise=False)
    runs = [(float(start), float(end), name) for start, end, name in map(str.split, log.read_text().splitlines())]
    runs.sort()
    assert all(before[1] <= after[0] for before, after in pairwise(runs))
    turns = [name for index, (_, _, name) in enumerate(runs) if index == 0 or runs[index - 1][2] != name]
    # First runs, then ten rounds that run forwards and backwards in turn, so that neighbours of one name melt.
    assert len(turns) >= 10
    assert turns[:2] == ["one", "two"]


def test_errors_are_measured_against_onnxruntime(make_engine: MakeEngine, mlp: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    array = np.random.default_rng(3).standard_normal((4, 32)).astype("float32")
    (expected,) = onnxruntime.InferenceSession(mlp, providers=["CPUExecutionProvider"]).run(None, {"x": array})
    wrong = expected.copy()
    wrong[2, 3] += 0.5
    body = "def outputs(self):\n    return [np.array({values}, 'float32')]\nEngine.outputs = outputs"
    make_engine("right", body.format(values=expected.tolist()))
    make_engine("wrong", body.format(values=wrong.tolist()))
    result = compare(mlp, ["right", "wrong"], inputs={"x": array}, noise=False)
    assert result.reference == "onnxruntime"
    assert [row.label for row in result.rows] == ["right", "wrong"]  # the reference was not asked for: no row
    assert result["right"].max_abs_error == pytest.approx(0, abs=1e-6)
    assert result["wrong"].max_abs_error == pytest.approx(0.5, rel=1e-5)
    assert result["wrong"].relative_error == pytest.approx(0.5 / expected.std(), rel=1e-5)
    assert any("outputs of wrong differ from those of onnxruntime" in note for note in result.notes)
    assert not any("outputs of right differ" in note for note in result.notes)


def test_noise_is_one_engine_against_itself(make_engine: MakeEngine, mlp: Path) -> None:
    make_engine("steady", engines.SLEEPER.format(seconds=0.02))
    make_engine("slower", engines.SLEEPER.format(seconds=0.06))
    result = compare(mlp, ["steady", "slower"])
    assert result.noise_engine == "steady"
    assert result.noise_ratio is not None
    assert 1.0 <= result.noise_ratio < 1.3
    assert [row.label for row in result.rows] == ["steady", "slower"]
    assert result.summary()["noise_ratio"] == pytest.approx(result.noise_ratio, rel=1e-5)


def test_noise_that_is_there_is_found(make_engine: MakeEngine, mlp: Path, tmp_path: Path) -> None:
    # The second process of this engine is slower than the first: a made-up disturbance of 100 %.
    body = """
    marker = {path!r}
    slow = os.path.exists(marker)
    open(marker, "w").close()
    def run(self):
        time.sleep(0.04 if slow else 0.02)
    Engine.run = run
    """
    make_engine("moody", body.format(path=str(tmp_path / "marker")))
    result = compare(mlp, ["moody"])
    assert result.noise_ratio == pytest.approx(2.0, rel=0.25)
    assert any("moody differs from itself by" in note for note in result.notes)


def test_contenders_with_labels_and_options(make_engine: MakeEngine, mlp: Path) -> None:
    make_engine("good", "")
    result = compare(mlp, [Contender("good", "first"), Contender("good", "second")], noise=False)
    assert [row.label for row in result.rows] == ["first", "second"]
    assert result["first"].engine == "good"
    with pytest.raises(KeyError, match="no row 'third'; there are first, second"):
        result["third"]


def test_progress_counts_up_to_its_total(make_engine: MakeEngine, mlp: Path) -> None:
    make_engine("good", "")
    steps: list[tuple[str, int, int]] = []
    compare(mlp, ["good"], progress=lambda text, done, total: steps.append((text, done, total)))
    assert [done for _, done, _ in steps] == list(range(len(steps)))
    assert len(steps) <= steps[-1][2]
    assert steps[0][0] == "starting good"
    assert any(text == "round 10 of 10: good" for text, _, _ in steps)


@pytest.mark.parametrize(
    ("engines_asked", "options", "error", "pattern"),
    [
        (["gpu"], {}, OptionError, "unknown engine 'gpu', candidates are tvm, tvm_ext, onnxruntime, openvino, torch"),
        ([], {}, OptionError, "no engine given"),
        (["tvm", "tvm"], {}, OptionError, "two rows are called 'tvm'"),
        (["torch"], {}, OptionError, "engine torch does not run models of kind onnx; these do: tvm, tvm_ext"),
        (["tvm"], {"threads": 0}, OptionError, "threads must be 1 to"),
        (["tvm"], {"threads": 10_000}, OptionError, "found 10000"),
        (["tvm"], {"repeats": 9}, OptionError, "repeats must be 10 or more"),
        (["tvm"], {"budget": 0}, OptionError, "seconds above 0"),
        (["tvm"], {"inputs": {}, "input_shapes": {"x": [4, 32]}}, OptionError, "not both"),
        (["tvm"], {"target": "nvidia/nvidia-a100"}, TargetError, "target cuda: this machine has no NVIDIA GPU"),
        (["tvm"], {"target": "lvm"}, TargetError, "lvm"),
    ],
)
def test_options_are_checked_before_anything_starts(
    mlp: Path, engines_asked: list[str], options: dict[str, object], error: type[Exception], pattern: str
) -> None:
    start = time.monotonic()
    with pytest.raises(error, match=pattern):
        compare(mlp, engines_asked, **options)  # type: ignore[arg-type]
    assert time.monotonic() - start < 5


def test_an_engine_that_is_not_installed(mlp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ext.bench.peers.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"engine openvino needs openvino .* pip install 'tvm-ext\[bench\]'"):
        compare(mlp, ["openvino"])


def test_options_that_an_engine_does_not_take() -> None:
    with pytest.raises(OptionError, match="engine 'tvm' has no option 'disable': it takes no options"):
        Contender("tvm", options={"disable": "fuse"})
    with pytest.raises(OptionError, match="engine 'openvino' has no option 'hint': its options are precision"):
        Contender("openvino", options={"hint": "bf16"})


def test_target_crosses_as_json() -> None:
    from tvm_ext.target import resolve_target

    text, device = bench_target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 3})
    assert device == "cpu"
    assert json.loads(text)["mcpu"] == "core-avx2"
    assert str(resolve_target(text)) == str(resolve_target({"kind": "llvm", "mcpu": "core-avx2", "num-cores": 3}))


def test_emulated_targets_are_refused() -> None:
    with pytest.raises(TargetError, match=r"target hexagon: .* `tvm-ext hexagon profile` counts what they execute"):
        bench_target("hexagon-v67")


def test_output_errors_take_the_worst() -> None:
    reference = [np.array([0.0, 2.0]), np.array([0.0, 20.0])]  # standard deviations 1 and 10
    assert output_errors([reference[0], reference[1] + 1], reference) == pytest.approx((1.0, 0.1))
    assert output_errors([reference[0] + 0.5, reference[1] + 1], reference) == pytest.approx((1.0, 0.5))
    assert output_errors(reference[:1], reference) == (np.inf, np.inf)
    assert output_errors([reference[0] * np.nan, reference[1]], reference) == (np.inf, np.inf)
    assert output_errors([], []) == (0.0, 0.0)


@pytest.mark.parametrize("flags", [{"avx2"}, {"avx2", "avx512_vnni"}])
def test_a_runtime_that_saturates_is_no_reference(
    flags: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(course.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(course, "processor_flags", lambda: frozenset(flags))
    model = graph(
        "g (uint8[3,34] x) => (int32[3,17] y) { y = MatMulInteger (x, weight) }",
        weight=np.full((34, 17), 127, "int8"),
    )
    path = tmp_path / "integers.onnx"
    onnx.save(model, path)
    inputs = {"x": np.full((3, 34), 255, "uint8")}
    result = compare(path, ["tvm_ext", "onnxruntime"], inputs=inputs, budget=0.1, noise=False)
    assert result.reference == ("onnxruntime" if "avx512_vnni" in flags else "onnxruntime, exact")
    assert [row.label for row in result.rows] == ["tvm_ext", "onnxruntime"]
    if "avx512_vnni" not in flags:
        assert result["tvm_ext"].max_abs_error == 0
        assert result["onnxruntime"].max_abs_error is not None
