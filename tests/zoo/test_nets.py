"""The torch definitions: sizes known from the papers, shapes, meaning, and their ONNX form."""

# ruff: noqa: E402 - what follows the check for torch needs torch

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.zoo import ZOO, inputs, need
from tests.zoo.nets import bert, c3d, darts, efficientnet, gpt2, mobilenet, randwire, resnet, unet, vgg
from tests.zoo.nets.initial import with_weights
from tests.zoo.nets.layers import conv_norm
from tests.zoo.nets.small import SMALL
from tests.zoo.wheels import MINILM

pytestmark = pytest.mark.torch

# Exact where a count has been published for the same layers.
PARAMETERS: dict[str, tuple[Callable[[], Any], int]] = {
    "resnet18": (resnet.ResNet18, 11_689_512),
    "mobilenet_v2": (mobilenet.MobileNetV2, 3_504_872),
    "efficientnet_b0": (efficientnet.EfficientNetB0, 5_288_548),
    "vgg16": (vgg.VGG16, 138_357_544),
    "bert_base": (bert.Bert, 109_482_240),
    "tinybert": (partial(bert.Bert, bert.TINYBERT), 14_350_248),
    "distilbert": (bert.DistilBert, 66_362_880),
    "gpt2": (gpt2.GPT2, 124_439_808),
    "darts": (darts.DartsNet, 3_349_342),
}
# In millions, where the papers round or later versions differ in a detail.
ROUGHLY: dict[str, tuple[Callable[[], Any], float]] = {
    "unet": (unet.UNet, 31.0),
    "c3d": (c3d.C3D, 78.0),
    "randwire_er": (partial(randwire.RandWire, "ER"), 5.7),
    "randwire_ba": (partial(randwire.RandWire, "BA"), 5.7),
    "randwire_ws": (partial(randwire.RandWire, "WS"), 5.6),
}


def _parameters(make: Callable[[], Any]) -> int:
    with torch.device("meta"):  # shapes without memory
        return sum(parameter.numel() for parameter in make().parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_is_the_published_one(name: str) -> None:
    make, count = PARAMETERS[name]
    assert _parameters(make) == count


@pytest.mark.parametrize("name", ROUGHLY)
def test_parameter_count_is_near_the_published_one(name: str) -> None:
    make, millions = ROUGHLY[name]
    assert _parameters(make) / 1e6 == pytest.approx(millions, rel=0.05)


@pytest.mark.parametrize("name", SMALL)
def test_small_net_has_the_output_shape_and_a_living_signal(name: str) -> None:
    small = SMALL[name]
    module = small.module()
    with torch.no_grad():
        one, other = module(*small.inputs(0)), module(*small.inputs(1))
    one, other = (output[0] if isinstance(output, tuple) else output for output in (one, other))
    assert tuple(one.shape) == small.output_shape
    assert 0.02 < one.std() < 5
    assert (one - other).abs().max() > 0.05 * one.std()
    assert not module.training


def test_weights_depend_on_the_seed_alone() -> None:
    one, same, other = (with_weights(vgg.VGG16(10, 4, 32, 32), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not any(torch.equal(one[key], other[key]) for key in one)


def test_calibrated_normalisation_leaves_unit_variance() -> None:
    batch = torch.from_numpy(inputs.picture(np.random.default_rng(0), (2, 3, 32, 32)))
    layers = with_weights(conv_norm(3, 8, activation=None), 0, [batch])
    with torch.no_grad():
        normalised = (layers(batch) - layers[1].bias[:, None, None]) / layers[1].weight[:, None, None]
    torch.testing.assert_close(normalised.mean(dim=(0, 2, 3)), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalised.var(dim=(0, 2, 3)), torch.ones(8), atol=1e-3, rtol=0)
    assert layers[1].momentum == 0.1


def test_gpt2_does_not_look_ahead() -> None:
    module, (prompt,) = SMALL["gpt2"].module(), SMALL["gpt2"].inputs()
    changed = prompt.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 100
    with torch.no_grad():
        before, after = module(prompt), module(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_bert_does_not_see_the_padding() -> None:
    module, (tokens, mask, types) = SMALL["bert"].module(), SMALL["bert"].inputs()
    mask[:, 8:] = 0
    changed = tokens.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 100
    with torch.no_grad():
        before, after = module(tokens, mask, types)[0], module(changed, mask, types)[0]
    torch.testing.assert_close(before[:, :8], after[:, :8])


@pytest.mark.parametrize("generator", ["ER", "BA", "WS"])
def test_random_graph_is_acyclic_seeded_and_of_its_kind(generator: randwire.Generator) -> None:
    graph, same, other = (randwire.random_graph(generator, 32, seed) for seed in (0, 0, 1))
    assert set(graph.edges) == set(same.edges)
    assert set(graph.edges) != set(other.edges)
    assert all(source < target for source, target in graph.edges)
    expected = {"ER": 0.2 * 32 * 31 / 2, "BA": 5 * (32 - 5), "WS": 32 * 4 / 2}[generator]
    assert graph.number_of_edges() == pytest.approx(expected, rel=0.3 if generator == "ER" else 0)


def test_darts_has_reduction_cells_at_thirds() -> None:
    module = SMALL["darts"].module()
    with torch.no_grad():
        before = last = module.stem(*SMALL["darts"].inputs())
        sizes = []
        for cell in module.cells:
            before, last = last, cell(before, last)
            sizes.append(last.shape[-1])
    assert sizes == [16, 16, 8, 8, 4, 4]


def _word_pieces(sentence: str, vocabulary: dict[str, int]) -> list[int]:
    """Greedy longest-match tokens of lower-case words, between the marks for begin and end."""
    ids = [vocabulary["[CLS]"]]
    for word in sentence.split():
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            end = next(end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary)
            ids.append(vocabulary[prefix + word[start:end]])
            start = end
    return [*ids, vocabulary["[SEP]"]]


def test_sentence_encoder_knows_what_sentences_mean() -> None:
    """Only right weights in the right places put a paraphrase nearer than another sentence with the same words."""
    module = need("minilm").torch_module()
    lines = MINILM.path("vocab.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = {line: index for index, line in enumerate(lines)}
    sentences = ["a man is eating a pizza", "someone has italian food for dinner", "a man is painting a wall"]
    vectors = []
    for sentence in sentences:
        ids = torch.tensor([_word_pieces(sentence, vocabulary)])
        with torch.no_grad():
            vectors.append(module(ids, torch.ones_like(ids), torch.zeros_like(ids))[0])
    assert vectors[0].norm() == pytest.approx(1, abs=1e-5)
    paraphrase, other = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert paraphrase > 0.4
    assert paraphrase > other + 0.1


TORCH_ENTRIES = [
    pytest.param(entry.name, marks=pytest.mark.slow if entry.slow else (), id=entry.name)
    for entry in ZOO.values()
    if entry.module is not None
]


@pytest.mark.parametrize("name", TORCH_ENTRIES)
def test_onnx_form_agrees_with_torch(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    entry = need(name)
    with torch.no_grad():
        expected = entry.torch_module()(*entry.example_inputs(1))
    expected = expected if isinstance(expected, tuple) else (expected,)
    session = onnxruntime.InferenceSession(str(entry.onnx_path()), providers=["CPUExecutionProvider"])
    found = session.run(None, entry.inputs(1))
    for theirs, ours in zip(expected, found, strict=True):
        scale = float(theirs.std())
        assert np.abs(theirs.numpy() - ours).max() < 1e-4 * scale


def test_a_model_without_torch_definition_says_so() -> None:
    with pytest.raises(LookupError, match="squeezenet has no torch definition"):
        ZOO["squeezenet"].torch_module()
