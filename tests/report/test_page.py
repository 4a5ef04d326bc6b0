from __future__ import annotations

import re
from html.parser import HTMLParser

from tests.report.samples import small_inspection
from tvm_ext.graph import symbol
from tvm_ext.report.page import render

_VOID = {"meta", "link", "br", "wbr", "img", "hr"}


class Outline(HTMLParser):
    """Checks that tags close in order, and keeps ids, texts and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script") and data.strip():
            self.texts.append(data.strip())


def test_the_page_holds_every_section():
    page = Outline(render(small_inspection()))
    assert page.ids == [
        "operators",
        "kernels",
        "groups",
        "layouts",
        "rewriting",
        "memory",
        "chart0",
        "tensors",
        "phases",
    ]
    text = " ".join(page.texts)
    for expected in (
        *("net.onnx", "llvm mcpu=generic", "tvm-ext 1.2.3", "bound batch to 1", "float32[1, 3]"),
        *("1.50 MFLOP", "2.0 KiB", "4.50 MFLOP", "cpu.conv2d", "no rule", "11,718.75", "1.5 KiB"),
        *("importer's order = depth first", "planned", "about planned", "1.25 s", "12.5 ms"),
        "arithmetic of sort is not known and is missing in the sums",
        "No profile: tensor 'a' has 4 * n bytes.",
        *("Conv node 'a'", "winograd", "block_in 16, winograd (tile 7 x 2)"),
        *("Many-to-Many", "a * c + a * b -> a * (b + c)", "took 3.00 kFLOP before"),
    ):
        assert expected in text, expected


def test_the_page_loads_nothing():
    source = render(small_inspection())
    loading = [
        (tag, name, value)
        for tag, name, value in Outline(source).attributes
        if name in ("src", "href", "srcset", "data", "action") and not value.startswith(("#", "data:,"))
    ]
    assert loading == []
    assert not re.search(r"https?:|@import|url\(|fetch\(|XMLHttpRequest", source)


def test_names_of_the_model_are_text_and_never_markup():
    nasty = '</script><script>alert("x")</script><b>&amp;'
    source = render(small_inspection(name=nasty, kernel=nasty))
    page = Outline(source)
    assert source.count("<script") == 2  # the data of the chart, and the script of the page
    assert "alert(" not in re.sub(r'(?s)data-sort="[^"]*"|&lt;script&gt;alert\(', "", source)
    assert any('alert("x")' in text for text in page.texts)


def test_data_of_a_chart_cannot_end_its_element():
    inspection = small_inspection()
    profile = inspection.memory[0].profiles[0]
    object.__setattr__(profile, "name", "</script><b>")
    assert source_scripts(render(inspection)) == 2


def source_scripts(source: str) -> int:
    return source.count("</script>")


def test_symbolic_sizes_are_written_as_formulas():
    text = " ".join(Outline(render(small_inspection(flops=640 * symbol("n")))).texts)
    assert "640 * n FLOP" in text
    assert "1920 * n FLOP" in text


def test_numbers_sort_by_value_and_not_by_their_text():
    source = render(small_inspection())
    assert 'class="number" data-sort="4500000">4.50 MFLOP' in source
    assert 'class="number" data-sort="-1">?' in source


def test_long_tables_fold_their_tail():
    inspection = small_inspection()
    many = tuple(inspection.operators[0] for _ in range(45))
    object.__setattr__(inspection, "operators", many)
    assert "<summary>15 more</summary>" in render(inspection)
