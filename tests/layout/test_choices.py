"""Choices of whole networks: what there is to choose is valid, computes the same, and is kept in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax

import tvm_ext
from tests.layout.test_plans import MACHINES, shapes
from tests.schedules.kernels import graph
from tvm_ext.backends.cpu.target import native_target
from tvm_ext.database.folders import open_database
from tvm_ext.errors import TuningError
from tvm_ext.layout.choices import CHOICES, Choices, read_choices, write_choices
from tvm_ext.layout.convolution_choices import choose_convolution, convolution_key, convolution_plans, plan_name
from tvm_ext.layout.convolution_plan import ConvolutionShape, plan_convolution
from tvm_ext.layout.product_plan import choose_product, plan_product
from tvm_ext.layout.relax.offers import offers_of, with_offers
from tvm_ext.layout.verify import verify_plan, verify_product
from tvm_ext.options import PipelineOptions
from tvm_ext.schedules.compute.matmul import MatmulShape
from tvm_ext.tuning.whole_network import network_offers


@given(shapes(), st.sampled_from(MACHINES), st.booleans(), st.sampled_from([0, 4, 8, 16]), st.booleans())
def test_every_way_is_valid_and_the_first_is_the_default(
    shape: ConvolutionShape, machine, winograd: bool, stored: int, bfloat16: bool
) -> None:
    plans = convolution_plans(shape, machine, stored, winograd, bfloat16)
    chosen = plan_convolution(shape, machine, stored, winograd, bfloat16)
    assert next(iter(plans.values()), None) == chosen
    assert len(set(plans.values())) == len(plans) or shape.results[-1] == 1
    for name, plan in plans.items():
        verify_plan(plan, shape)
        assert winograd or plan.form != "winograd"
        assert name.startswith(plan_name(plan).split(" in ")[0])


@given(
    st.lists(st.sampled_from([1, 3, 7, 17, 31, 33, 127]), min_size=3, max_size=3),
    st.sampled_from(MACHINES),
    st.sampled_from(["float32", "float64"]),
    st.booleans(),
)
def test_every_tile_of_a_product_is_valid(extents: list[int], machine, dtype: str, bfloat16: bool) -> None:
    rows, reduction, columns = extents
    shape = MatmulShape((rows, reduction), (reduction, columns))
    choices = Choices()
    assert choose_product(choices, shape, (0, 1), dtype, machine, bfloat16) == plan_product(
        shape, (0, 1), dtype, machine, bfloat16
    )
    for offer in choices.offers.values():
        assert offer.work == rows * reduction * columns
        for option in offer.options:
            plan = choose_product(Choices({offer.key: option}), shape, (0, 1), dtype, machine, bfloat16)
            assert f"{plan.tile[0]}x{plan.tile[1]}" == option
            verify_product(plan, shape)


def test_a_choice_that_there_is_not_is_left_to_the_machine_model() -> None:
    assert Choices({"key": "gone"}).decide("key", ["a", "b"], "b") == "b"
    assert Choices({"key": "a"}).decide("key", ["a", "b"], "b") == "a"
    alone = Choices({"key": "gone"})
    assert alone.decide("key", ["a"], "a") == "a"
    assert not alone.offers


def network(channels: int = 33, size: int = 17) -> tvm.IRModule:
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> relax.Constant:
        return relax.const(rng.standard_normal(shape).astype("float32") * 0.1, "float32")

    def body(bb: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        first = bb.normalize(relax.op.nn.conv2d(x, weight(48, channels, 3, 3), padding=1))
        second = bb.normalize(
            relax.op.nn.conv2d(bb.normalize(relax.op.nn.relu(first)), weight(32, 48, 3, 3), padding=1)
        )
        flat = bb.normalize(relax.op.reshape(second, (1, 32 * size * size)))
        return bb.normalize(relax.op.matmul(flat, weight(32 * size * size, 37)))

    return graph(body, [((1, channels, size, size), "float32")])


@pytest.mark.slow
@pytest.mark.parametrize(("channels", "size"), [(33, 9), (16, 17), (3, 31)])
def test_every_choice_computes_the_same(channels: int, size: int, tmp_path: Path) -> None:
    mod = network(channels, size)
    data = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype("float32")
    expected = next(iter(tvm_ext.compile(mod, disable=("layout",)).run([data]).values()))
    offers = network_offers(mod, native_target(), PipelineOptions())
    assert {offer.key.partition(" ")[0] for offer in offers} == {"convolution", "product", "option"}
    open_database(tmp_path)
    for offer in offers:
        for option in offer.options:
            write_choices(tmp_path, {offer.key: option})
            found = next(iter(tvm_ext.compile(mod, work_dir=tmp_path).run([data]).values()))
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


def test_a_chosen_form_is_the_one_that_is_compiled(tmp_path: Path) -> None:
    weight = relax.const(np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype("float32"), "float32")
    mod = graph(lambda bb, x: relax.op.nn.conv2d(x, weight, padding=1), [((1, 16, 7, 7), "float32")])
    (offer, *_) = network_offers(mod, native_target(), PipelineOptions())
    data = [np.random.default_rng(1).standard_normal((1, 16, 7, 7)).astype("float32")]
    open_database(tmp_path)
    forms, results = {}, []
    for option in offer.options:
        write_choices(tmp_path, {offer.key: option})
        compiled = tvm_ext.compile(mod, work_dir=tmp_path)
        forms[option] = compiled.metadata["decisions"]["layout"][0]["form"]
        results.append(next(iter(compiled.run(data).values())))
    assert all(option.startswith(form) for option, form in forms.items())
    assert {"rows", "winograd"} <= set(forms.values())
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-4 * np.abs(results[0]).max())


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    assert read_choices(tmp_path) == {}
    write_choices(tmp_path, {"b": "1", "a": "2"})
    assert read_choices(tmp_path) == {"a": "2", "b": "1"}
    assert Choices.of(tmp_path).chosen == {"a": "2", "b": "1"}
    assert Choices.of(None).chosen == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2, "chosen": {}}', '{"format": 1, "chosen": {"a": 1}}', '{"format": 1', "\0"]
)
def test_a_damaged_file_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / CHOICES).write_text(text)
    with pytest.raises(TuningError, match=r"choices\.json: expected the choices of a search.*remove it"):
        read_choices(tmp_path)
    open_database(tmp_path)
    with pytest.raises(TuningError, match=r"choices\.json"):
        tvm_ext.compile(network(3, 5), work_dir=tmp_path)


def test_offers_are_noted_in_the_module() -> None:
    choices = Choices()
    choices.decide("key", ["a", "b"], "a", 3)
    choices.decide("key", ["a", "b"], "a", 4)
    mod = with_offers(tvm.IRModule(), choices)
    (offer,) = offers_of(mod)
    assert (offer.key, offer.options, offer.default, offer.work) == ("key", ("a", "b"), "a", 7)
    assert offer.seconds == ()
    assert offers_of(with_offers(mod, Choices())) == (offer,)


def test_what_options_are_expected_to_take_is_added_up() -> None:
    choices = Choices()
    choices.decide("key", ["a", "b"], "a", 3, [1.0, 2.0])
    choices.decide("key", ["a", "b"], "a", 3, [1.0, 2.5])
    (offer,) = offers_of(with_offers(tvm.IRModule(), choices))
    assert offer.seconds == (2.0, 4.5)
    choices.decide("key", ["a", "c"], "a", 3, [1.0, 2.0])  # of other options, such as those of a graph in blocks
    assert choices.offers["key"].options == ("a", "c")
    assert choices.offers["key"].work == 9
    assert choices.offers["key"].seconds == ()


def test_six_outputs_are_among_the_ways_of_large_images_and_not_the_default() -> None:
    machine = next(machine for machine in MACHINES if machine.isa == "avx512")
    shape = ConvolutionShape(1, 128, 128, 1, (108, 108), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
    choices = Choices()
    choose_convolution(choices, shape, machine, 0, True, False)
    (offer,) = choices.offers.values()
    seconds = dict(zip(offer.options, offer.seconds, strict=True))
    assert offer.default.startswith("winograd 4")
    assert min(seconds, key=seconds.__getitem__).startswith("winograd 6")
    plan = choose_convolution(Choices({offer.key: "winograd 6 in strips"}), shape, machine, 0, True, False)
    assert plan is not None
    assert plan.winograd is not None
    assert plan.winograd.outputs == 6


def test_keys_tell_convolutions_apart() -> None:
    shape = ConvolutionShape(1, 64, 64, 1, (56, 56), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1))
    assert convolution_key(shape) == "convolution 64x56x56 -> 64, 3x3, padding 1x1x1x1"
