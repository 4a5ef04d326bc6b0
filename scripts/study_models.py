"""The models of the DNNFusion study as torch exports them, every operator kept."""

from __future__ import annotations

import io
import logging
import warnings

import onnx
import torch

from tests.zoo.nets import exported, exported_cnn

SEQUENCE = 128

# Operators before and kernels after, as the study prints them (table 5).
SOURCE = {
    "efficientnet_b0": (309, 97),
    "c3d": (27, 16),
    "s3d": (272, 98),
    "unet": (292, 82),
    "yolo_v4": (398, 135),
    "tinybert": (366, 74),
    "distilbert": (457, 109),
    "albert": (936, 225),
    "bert_base": (976, 216),
    "mobilebert": (2387, 510),
    "gpt2": (2533, 254),
}


def sample(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Make a net of the study and example inputs, and tell which dimensions are free."""
    if name in exported_cnn.NETS:
        make, shape = exported_cnn.NETS[name]
        torch.manual_seed(0)
        free = {0: "n", **{axis: f"d{axis}" for axis in range(2, len(shape))}}
        return make().eval(), {"x": torch.zeros(shape)}, {"x": free}
    names = ["tokens", "mask", "types"][: 1 if name == "gpt2" else 2 if name == "distilbert" else 3]
    inputs = {key: torch.ones(1, SEQUENCE, dtype=torch.long) for key in names}
    return exported.full(name), inputs, {key: {0: "n", 1: "s"} for key in names}


def export(
    module: torch.nn.Module, inputs: dict[str, torch.Tensor], free: dict[str, dict[int, str]]
) -> onnx.ModelProto:
    """Export with every operator kept, batch normalisation among them."""
    buffer = io.BytesIO()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(inputs.values()),
            buffer,
            dynamo=False,
            opset_version=11,
            input_names=list(inputs),
            dynamic_axes=free,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    return onnx.load_from_string(buffer.getvalue())


def operators_of(model: onnx.ModelProto) -> int:
    """Operators of an exported graph, as the study counts VGG-16: the bias of a convolution is an addition of its own.

    Constants, and names for values, are no operators.
    """
    biases = sum(node.op_type.startswith("Conv") and len(node.input) > 2 for node in model.graph.node)
    return biases + sum(node.op_type not in ("Constant", "Identity") for node in model.graph.node)
