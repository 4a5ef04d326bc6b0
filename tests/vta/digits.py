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
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), Residual(16),
            nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES),
        )  # fmt: skip
        parameters = list(network.parameters())
        speeds = [torch.zeros_like(parameter) for parameter in parameters]
        for _ in range(6):
            for batch in torch.randperm(len(pictures)).split(32):
                loss = nn.functional.cross_entropy(network(pictures[batch]), classes[batch])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():  # gradient descent with momentum; importing torch's takes longer than it runs
                    for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
                        speed.mul_(0.9).add_(gradient)
                        parameter.sub_(0.05 * speed)
    return network.eval()


def accuracy(answers: NDArray, classes: NDArray) -> float:
    """Share of rows whose largest value is at the right class."""
    return float((answers.argmax(axis=1) == classes).mean())
