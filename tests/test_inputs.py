from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from tvm_ext.errors import InputError
from tvm_ext.inputs import check_inputs, describe, numpy_dtype, random_inputs, read_inputs
from tvm_ext.tensor_spec import TensorSpec

NUMPY_DTYPES = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool")
IMAGE = TensorSpec("image", (1, 3, 4, 4), "float32")
IDS = TensorSpec("ids", ("batch", "length"), "int64")
MASK = TensorSpec("mask", ("batch", "length"), "bool")


def specs() -> st.SearchStrategy[list[TensorSpec]]:
    """Declarations of up to four inputs with odd names, symbolic dimensions shared between them."""
    dimensions = st.integers(0, 5) | st.sampled_from(["n", "m"])
    one = st.tuples(
        st.text(max_size=6), st.lists(dimensions, max_size=4).map(tuple), st.sampled_from(NUMPY_DTYPES)
    ).map(lambda fields: TensorSpec(*fields))
    return st.lists(one, max_size=4, unique_by=lambda spec: spec.name)


def test_describe() -> None:
    assert describe(IMAGE) == "image: float32[1,3,4,4]"
    assert describe(IDS) == "ids: int64[batch,length]"
    assert describe(TensorSpec("s", (), "int32")) == "s: int32[]"


@given(specs(), st.integers(0, 2**32), st.integers(0, 4), st.integers(0, 4))
def test_random_inputs_fit_their_declaration(declared: list[TensorSpec], seed: int, n: int, m: int) -> None:
    arrays = random_inputs(declared, seed, {"n": n, "m": m})
    assert list(arrays) == [spec.name for spec in declared]
    checked = check_inputs(declared, arrays)
    again = random_inputs(declared, seed, {"n": n, "m": m})
    for spec in declared:
        assert checked[spec.name].shape == tuple({"n": n, "m": m}.get(dim, dim) for dim in spec.shape)
        assert checked[spec.name].dtype.name == spec.dtype
        np.testing.assert_array_equal(checked[spec.name], arrays[spec.name])
        np.testing.assert_array_equal(again[spec.name], arrays[spec.name])


@given(specs())
def test_sequences_are_taken_in_order(declared: list[TensorSpec]) -> None:
    arrays = list(random_inputs(declared).values())
    checked = check_inputs(declared, arrays)
    assert list(checked) == [spec.name for spec in declared]
    for result, array in zip(checked.values(), arrays, strict=True):
        np.testing.assert_array_equal(result, array)


@given(stn.arrays(st.sampled_from(NUMPY_DTYPES), stn.array_shapes(min_dims=0, max_dims=4), elements={"min_value": 0}))
def test_memory_order_and_byte_order_do_not_matter(array: np.ndarray) -> None:
    spec = TensorSpec("x", array.shape, array.dtype.name)
    swapped = array.astype(array.dtype.newbyteorder(">"))
    for variant in (np.asfortranarray(array).reshape(array.shape), swapped, np.repeat(array[..., None], 2, -1)[..., 1]):
        result = check_inputs([spec], [variant])["x"]
        assert result.flags.c_contiguous
        assert result.dtype.isnative
        assert result.shape == array.shape
        np.testing.assert_array_equal(result, array)


def test_symbolic_dimensions_are_one_value() -> None:
    check_inputs([IDS, MASK], [np.zeros((2, 5), "int64"), np.zeros((2, 5), "bool")])
    with pytest.raises(InputError, match=r"mask: bool\[batch,length\]: dimension 1 must be 5, found bool\[2,6\]"):
        check_inputs([IDS, MASK], [np.zeros((2, 5), "int64"), np.zeros((2, 6), "bool")])


@pytest.mark.parametrize(
    ("given_inputs", "message"),
    [
        ({"imgae": 0}, r"no input 'imgae', did you mean 'image'\?; expected image: float32\[1,3,4,4\]"),
        ({"other": 0}, r"the model has no input 'other'; expected image"),
        ({}, r"no value for input 'image'; expected image"),
        ([], r"0 inputs given where 1 are needed; expected image"),
        ([0, 0], r"2 inputs given where 1 are needed"),
        ([np.zeros((1, 3, 4, 4))], r"found dtype float64; convert it with numpy.asarray\(value, 'float32'\)"),
        ([np.zeros((3, 4, 4), "float32")], r"expected 4 dimensions, found float32\[3,4,4\]"),
        ([np.zeros((1, 3, 5, 4), "float32")], r"dimension 2 must be 4, found float32\[1,3,5,4\]"),
        ([np.array("text")], r"found dtype <U4"),
        ([np.array(None)], r"found dtype object"),
    ],
)
def test_what_does_not_fit_is_explained(given_inputs: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_inputs([IMAGE], given_inputs)


def test_a_model_without_inputs() -> None:
    assert check_inputs([], {}) == {}
    with pytest.raises(InputError, match="the model takes no inputs"):
        check_inputs([], [np.zeros(1)])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4", *NUMPY_DTYPES, "complex64"])
def test_dtypes_by_name(name: str) -> None:
    assert numpy_dtype(name).name == name
    array = random_inputs([TensorSpec("x", (2, 3), name)])["x"]
    assert array.dtype == numpy_dtype(name)


@pytest.mark.parametrize("name", ["", "object", "str", "f4", "void", "finfo", "handle", "i4,i4", "__name__"])
def test_other_names_are_no_dtypes(name: str) -> None:
    with pytest.raises(TypeError, match="no numeric type"):
        numpy_dtype(name)


def test_small_floats_come_as_ml_dtypes() -> None:
    assert numpy_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)


class TestFiles:
    def test_one_input_by_file_alone_or_by_name(self, tmp_path: Path) -> None:
        array = np.random.default_rng(0).standard_normal(IMAGE.shape).astype("float32")
        np.save(tmp_path / "x.npy", array)
        np.save(tmp_path / "a=b.npy", array)
        for argument in (f"{tmp_path}/x.npy", f"image={tmp_path}/x.npy", f"{tmp_path}/a=b.npy"):
            np.testing.assert_array_equal(read_inputs([IMAGE], [argument])["image"], array)

    def test_several_inputs_from_archives_and_files(self, tmp_path: Path) -> None:
        ids, mask = np.arange(6, dtype="int64").reshape(2, 3), np.ones((2, 3), "bool")
        np.savez(tmp_path / "both.npz", ids=ids, mask=mask)
        np.savez_compressed(tmp_path / "one.npz", ids=ids)
        np.save(tmp_path / "mask.npy", mask)
        for arguments in (["both.npz"], ["one.npz", "mask=mask.npy"]):
            named = [part.replace("mask.npy", f"{tmp_path}/mask.npy") for part in arguments]
            named = [str(tmp_path / part) if "=" not in part else part for part in named]
            read = read_inputs([IDS, MASK], named)
            np.testing.assert_array_equal(read["ids"], ids)
            np.testing.assert_array_equal(read["mask"], mask)

    def test_names_with_colons_and_equal_signs(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros(2, "float32"))
        spec = TensorSpec("in=put:0", (2,), "float32")
        assert list(read_inputs([spec], [f"in=put:0={tmp_path}/x.npy"])) == ["in=put:0"]

    def test_an_input_given_twice(self, tmp_path: Path) -> None:
        array = np.zeros(tuple(dim if isinstance(dim, int) else 1 for dim in IMAGE.shape), IMAGE.dtype)
        np.save(tmp_path / "x.npy", array)
        np.savez(tmp_path / "x.npz", **{IMAGE.name: array})
        for second in (f"{IMAGE.name}={tmp_path}/x.npy", f"{tmp_path}/x.npz"):
            with pytest.raises(InputError, match=f"input '{IMAGE.name}' is given twice"):
                read_inputs([IMAGE], [f"{tmp_path}/x.npy", second])
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(tmp_path / "x.npz", "a") as archive:
            archive.write(tmp_path / "x.npy", f"{IMAGE.name}.npy")
        with pytest.raises(InputError, match=f"x.npz holds two arrays of the name '{IMAGE.name}'"):
            read_inputs([IMAGE], [f"{tmp_path}/x.npz"])

    def test_a_wrong_name_is_said_before_a_missing_file(self) -> None:
        with pytest.raises(InputError, match=r"no input 'mark', did you mean 'mask'\?; expected ids"):
            read_inputs([IDS, MASK], ["mark=gone.npy"])

    def test_a_file_without_name_for_a_model_with_two_inputs(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros(2))
        with pytest.raises(InputError, match=r"say which input it is, NAME=.*x.npy, with NAME one of ids, mask"):
            read_inputs([IDS, MASK], [f"{tmp_path}/x.npy"])

    @pytest.mark.parametrize(
        ("name", "write", "message"),
        [
            ("gone.npy", lambda path: None, "gone.npy: No such file or directory; give an .npy file"),
            ("folder.npy", lambda path: path.mkdir(), "folder.npy: Is a directory; give an .npy file of one input"),
            ("x.npy", lambda path: path.write_bytes(b""), "x.npy cannot be read as NumPy data"),
            (
                "x.npy",
                lambda path: path.write_text("hello"),
                r"x.npy cannot be read .*another kind; write it with numpy\.save",
            ),
            ("x.npz", lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "x.npz cannot be read as NumPy data"),
            ("x.npz", lambda path: path.write_bytes(_bytes(np.save)), "x.npz ends in .npz but holds a single array"),
            ("x.npy", lambda path: path.write_bytes(_bytes(np.savez)), "x.npy is an .npz archive; give it without"),
            ("x.npy", lambda path: np.save(path, np.array([None]), allow_pickle=True), "it holds Python objects"),
            ("x.npy", lambda path: path.write_bytes(_giant_header()), "x.npy cannot be read as NumPy data"),
            ("x" * 300 + ".npy", lambda path: None, "File name too long"),
        ],
    )
    def test_files_that_are_not_what_they_should_be(
        self, tmp_path: Path, name: str, write: Callable[[Path], object], message: str
    ) -> None:
        write(tmp_path / name)
        with pytest.raises(InputError, match=message):
            read_inputs([IMAGE], [str(tmp_path / name)])


def _bytes(save: Callable[..., None]) -> bytes:
    stream = io.BytesIO()
    save(stream, np.zeros(IMAGE.shape, "float32"))
    return stream.getvalue()


def _giant_header() -> bytes:
    """Header of an array of 2**62 elements."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


DAMAGED = {"npy": _bytes(np.save), "npz": _bytes(np.savez), "compressed.npz": _bytes(np.savez_compressed)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(st.data())
def test_damaged_files_give_an_array_that_fits_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(DAMAGED)))
    content = bytearray(DAMAGED[kind][: data.draw(st.integers(0, len(DAMAGED[kind])) | st.just(10**6))])
    # The first bytes hold magic, header and zip records: that is where damage leads furthest.
    for position in data.draw(st.lists(st.integers(0, 160) | st.integers(0, len(DAMAGED[kind])), max_size=4)):
        if position < len(content):
            content[position] ^= data.draw(st.integers(1, 255))
    path = tmp_path / f"x.{kind}"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        arrays = read_inputs([TensorSpec("arr_0", IMAGE.shape, "float32")], [str(path)])
        assert arrays["arr_0"].shape == IMAGE.shape


@pytest.mark.parametrize("value", [None, 1.5, np.zeros((2, 3), "float32")])
def test_inputs_are_a_dict_or_a_list(value: object) -> None:
    with pytest.raises(InputError, match=f"a list of arrays, found {type(value).__name__}"):
        check_inputs([IMAGE], value)  # type: ignore[arg-type]


def test_masked_elements_are_refused() -> None:
    array = np.ma.masked_array(np.zeros(3, "float32"), [False, True, False])
    spec = TensorSpec("x", (3,), "float32")
    for taken in ([array], {"x": array}):
        with pytest.raises(InputError, match=r"input x: float32\[3\]: 1 elements of the array are masked"):
            check_inputs([spec], taken)
    assert not check_inputs([spec], [np.ma.masked_array(np.zeros(3, "float32"))])["x"].any()


@pytest.mark.parametrize("extents", [(10**12, 3, 16, 16), (2**40, 2**40, 2**40)])
def test_random_values_that_fit_nowhere(extents: tuple[int, ...]) -> None:
    size = 4 * math.prod(extents)
    with pytest.raises(InputError, match=rf"input x: float32\[.*{size} bytes of random values do not fit into memory"):
        random_inputs([TensorSpec("x", extents, "float32")])


def test_archives_are_not_unpacked_for_another_shape(tmp_path: Path) -> None:
    """The header alone is read: the array behind it is not there."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (400000, 3)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", header.getvalue())
    with pytest.raises(InputError, match=r"input x: float32\[2,3\]: dimension 0 must be 2, found .*400000"):
        read_inputs([TensorSpec("x", (2, 3), "float32")], [str(tmp_path / "x.npz")])


def test_random_inputs_fit_dimensions_that_are_computed() -> None:
    declared = [
        TensorSpec("x", (2, "4*s"), "float32", (None, (8, 64))),
        TensorSpec("y", ("s", "2*m + 1", "s + m"), "float32"),
    ]
    assert [array.shape for array in random_inputs(declared).values()] == [(2, 8), (2, 3, 3)]
    given = random_inputs(declared, dimensions={"s": 5, "m": 7})
    assert [array.shape for array in given.values()] == [(2, 20), (5, 15, 12)]


def test_random_inputs_hold_conditions() -> None:
    declared = [TensorSpec("x", ("n", "m"), "float32", ((0, 9), (0, None)))]
    found = random_inputs(declared, conditions=["m % 3 == 2", "n >= 5"])
    assert found["x"].shape == (5, 5)
    capped = random_inputs(declared, conditions=["m == 17 or m == 20", "n < 10"])
    assert capped["x"].shape == (9, 17)
    assert random_inputs(declared, conditions=["n > m", "m > n"])["x"].shape == (1, 1)
