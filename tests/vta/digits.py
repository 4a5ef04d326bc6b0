"""A small residual network trained on scikit-learn's digits, in a few seconds: what accuracy in int8 is measured on."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = 10


@lru_cache(maxsize=1)
def digits() -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Pictures (N, 1, 8, 8) from 0 to 1 and their classes: to train on, and to test with."""
    from sklearn.datasets import load_digits

    pictures, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pictures))
    pictures = (pictures[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    classes = classes[order].astype(np.int64)
    return pictures[:1300], classes[:1300], pictures[1300:], classes[1300:]


@lru_cache(maxsize=1)
def trained_network() -> Any:
    """The network, in evaluation mode."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(channels)
            self.second = nn.Conv2d(channels, channels, 3, padding=1)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))

    pictures, classes = (torch.from_numpy(array) for array in digits()[:2])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # batches are so small that threads only wait for each other
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), Residual(16),
            nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES),
        )  # fmt: skip
        parameters = list(network.parameters())
        speeds = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(12):
            for batch in torch.randperm(len(pictures)).split(32):
                loss = nn.functional.cross_entropy(network(pictures[batch]), classes[batch])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():  # gradient descent with momentum; importing torch's takes longer than it runs
                    for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
                        speed.mul_(0.9).add_(gradient)
                        parameter.sub_(0.05 * speed)
    torch.set_num_threads(threads)
    return network.eval()


def relax_module(network: Any) -> Any:
    """The network as a Relax module; torch's own exporter takes longer to import than all the rest."""
    from tvm import relax
    from tvm.relax import op

    builder = relax.BlockBuilder()

    def constant(values: Any) -> Any:
        return relax.const(values.detach().numpy())

    def conv(layer: Any, data: Any) -> Any:
        call = op.nn.conv2d(data, constant(layer.weight), strides=layer.stride, padding=layer.padding)
        if layer.bias is None:
            return builder.emit(call)
        return builder.emit(op.add(builder.emit(call), constant(layer.bias.reshape(1, -1, 1, 1))))

    stem, _, block, wide, _, _, _, classifier = network
    x = relax.Var("input", relax.TensorType((1, 1, 8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            data = builder.emit(op.nn.relu(conv(stem, x)))
            norm = block.norm
            values = (norm.weight, norm.bias, norm.running_mean, norm.running_var)
            normal = op.nn.batch_norm(
                conv(block.first, data), *map(constant, values), axis=1, epsilon=norm.eps, training=False
            )
            inner = builder.emit(op.nn.relu(builder.emit(relax.TupleGetItem(builder.emit(normal), 0))))
            data = builder.emit(op.nn.relu(builder.emit(op.add(data, conv(block.second, inner)))))
            data = builder.emit(op.nn.relu(conv(wide, data)))
            data = builder.emit(op.nn.max_pool2d(data, (2, 2), (2, 2)))
            rows = builder.emit(op.reshape(data, (1, 32)))
            product = builder.emit(op.matmul(rows, constant(classifier.weight.T.contiguous())))
            output = builder.emit_output(op.add(product, constant(classifier.bias)))
        builder.emit_func_output(output)
    return builder.get()


def accuracy(answers: NDArray, classes: NDArray) -> float:
    """Share of rows whose largest value is at the right class."""
    return float((answers.argmax(axis=1) == classes).mean())
