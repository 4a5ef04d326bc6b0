"""Time against bytes: which points no other one beats, by comparing pairs; a small model measured and drawn."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.zoo import get
from tvm_ext.cli.memory import command
from tvm_ext.report.memory_pareto import LABEL_HEIGHT, WAYS, ParetoPoint, draw_pareto, label_heights, marked

SMALL = st.integers(0, 6)


@given(st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=8, unique=True))
def test_the_best_points_are_those_of_no_pair(places: list[tuple[int, int]]) -> None:
    points = marked([ParetoPoint(str(at), {}, size, float(time)) for at, (size, time) in enumerate(places)])
    beaten = {
        one.name
        for one, other in permutations(points, 2)
        if other.planned <= one.planned and other.milliseconds <= one.milliseconds
    }
    assert {point.name for point in points if not point.best} == beaten
    times = [point.milliseconds for point in points if point.best]
    assert times == sorted(times, reverse=True)


def test_a_model_is_measured_and_drawn(tmp_path: Path) -> None:
    model = get("tiny_cnn").onnx_path()
    picture = tmp_path / "curve.svg"
    done = CliRunner().invoke(command, [str(model), "--pareto", "--json", "--plot", str(picture)])
    assert done.exit_code == 0, done.output
    points = json.loads(done.stdout)["points"]
    assert [name for name, _ in WAYS] == sorted((point["name"] for point in points), key=[n for n, _ in WAYS].index)
    assert any(point["best"] for point in points)
    assert all(point["milliseconds"] > 0 and point["planned"] > 0 for point in points)
    assert picture.read_text().count("<svg") == 1


def test_it_does_not_go_without_running() -> None:
    done = CliRunner().invoke(command, [str(get("tiny_cnn").onnx_path()), "--pareto", "--no-run"])
    assert done.exit_code == 2
    assert "--no-run" in done.output


def test_a_picture_of_one_point(tmp_path: Path) -> None:
    draw_pareto(tmp_path / "one.png", "one", marked([ParetoPoint("only", {}, 0, 1.0)]))
    assert (tmp_path / "one.png").stat().st_size > 1000
    with pytest.raises(Exception, match=r"\.png"):
        draw_pareto(tmp_path / "one.txt", "one", [])


@pytest.mark.parametrize("count", [1, 2, 6])
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.3])
def test_labels_do_not_lie_upon_each_other(count: int, spread: float) -> None:
    places = [(0.2 + spread * (number % 2), 0.7 - 0.001 * number) for number in range(count)]
    heights = label_heights(places)
    for first in range(count):
        assert places[first][1] <= heights[first] <= 1
        for second in range(first):
            assert abs(heights[first] - heights[second]) >= LABEL_HEIGHT * 0.999


def test_labels_far_apart_stay_beside_their_points() -> None:
    assert label_heights([(0.1, 0.5), (0.6, 0.5), (0.1, 0.3)]) == [0.5, 0.5, 0.3]
