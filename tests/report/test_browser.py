"""The page in a real browser: it draws, its script runs, nothing is reported on the console, nothing overflows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.graph.modules import convolutional
from tests.report.samples import small_inspection
from tvm_ext.report.collect import inspect_model
from tvm_ext.report.page import render

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
# Appended to a copy of the page: sorts a table, moves the pointer over a chart, and writes down what can be measured.
PROBE = """
<script>
const head = document.querySelectorAll("#operators th.number")[0];
head.click();
const rows = () => [...document.querySelectorAll("#operators tbody tr")];
const order = () => rows().map((row) => Number(row.cells[1].dataset.sort));
const first = order();
head.click();
const chart = document.querySelector("#chart0 svg");
const box = chart.getBoundingClientRect();
chart.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 50 }));
const lines = [...chart.querySelectorAll("path.line")].map((line) => line.getBoundingClientRect());
const wide = [...document.querySelectorAll("section, header, nav")].filter((e) => e.scrollWidth > e.clientWidth + 1);
const probe = document.createElement("pre");
probe.id = "probe";
probe.textContent = JSON.stringify({
  first, second: order(), sort: head.getAttribute("aria-sort"),
  readout: document.querySelector("#chart0 .readout").innerText,
  chart: [box.width, box.height],
  lines: [Math.min(...lines.map((b) => b.width)), Math.max(...lines.map((b) => b.height))],
  stroke: getComputedStyle(chart.querySelector("path.line")).stroke,
  overflow: document.documentElement.scrollWidth - window.innerWidth, wide: wide.length,
  ink: getComputedStyle(document.body).color, page: getComputedStyle(document.body).backgroundColor,
});
document.body.append(probe);
</script>
"""


def open_page(page: str, folder: Path, width: int, *flags: str) -> tuple[str, str]:
    """The document after its scripts ran, and what the browser logged of its console."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    quiet = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --enable-logging=stderr --virtual-time-budget=2000"
    )
    command = [CHROMIUM, *quiet.split(), f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", *flags]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def probed(dom: str) -> dict:
    import json
    from html import unescape

    return json.loads(unescape(re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)[1]))


@pytest.fixture(scope="module")
def page() -> str:
    return render(inspect_model(convolutional()))


@pytest.mark.parametrize("width", [1400, 800])
def test_the_page_draws_and_its_script_runs(page, width, tmp_path):
    dom, console = open_page(page.replace("</body>", PROBE + "</body>"), tmp_path, width)
    assert console == ""
    assert 'data-script="ran"' in dom
    for section in ("operators", "kernels", "groups", "memory", "tensors", "phases"):
        assert f'<section id="{section}">' in dom
    seen = probed(dom)
    assert seen["overflow"] <= 0
    assert seen["wide"] == 0
    assert seen["first"] == sorted(seen["first"], reverse=True)
    assert seen["second"] == sorted(seen["second"])
    assert len(set(seen["first"])) > 1
    assert seen["sort"] == "ascending"
    assert re.match(r"step \d+\n", seen["readout"])
    assert "importer's order" in seen["readout"]
    assert "KiB" in seen["readout"]
    (chart_width, chart_height), (line_width, line_height) = seen["chart"], seen["lines"]
    assert 0.55 * width < chart_width < width
    assert chart_height > 150
    assert line_width > 0.8 * chart_width
    assert line_height > 0.1 * chart_height


def test_dark_pages_have_light_ink(page, tmp_path):
    def brightness(color: str) -> float:
        return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3

    source = page.replace("</body>", PROBE + "</body>")
    light = probed(open_page(source, tmp_path, 1000)[0])
    dark = probed(open_page(source, tmp_path, 1000, "--blink-settings=preferredColorScheme=0")[0])
    assert brightness(light["ink"]) < 80 < 200 < brightness(light["page"])
    assert brightness(dark["page"]) < 80 < 200 < brightness(dark["ink"])
    assert light["stroke"] != dark["stroke"]


def test_names_of_the_model_run_no_script(tmp_path):
    nasty = "</script><script>console.error('ran')</script><img src=x onerror=console.error(1)>"
    dom, console = open_page(render(small_inspection(name=nasty, kernel=nasty)), tmp_path, 1000)
    assert console == ""
    assert 'data-script="ran"' in dom
