"""The 26 convolutions of AlexNet, VGG-16 and ResNet-18 that tuners are compared on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConvolutionTask:
    """One convolution: batch 1, float32, square image and kernel.

    Attributes
    ----------
    inputs, outputs : int
        Channels.
    size : int
        Rows and columns of the input.
    kernel, stride, padding : int
    """

    name: str
    inputs: int
    outputs: int
    size: int
    kernel: int
    stride: int
    padding: int

    @property
    def network(self) -> str:
        """Name of the network it is a layer of."""
        return self.name.partition("-")[0]

    @property
    def output_size(self) -> int:
        """Rows and columns of the output."""
        return (self.size + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Floating-point operations, a multiply-add counted as two."""
        return 2 * self.output_size**2 * self.outputs * self.inputs * self.kernel**2


# Networks and numbers of tasks: table 4 of Ahn et al., "Chameleon", ICLR 2020; the shapes are those of the networks.
TASKS = (
    ConvolutionTask("alexnet-1", 3, 64, 224, 11, 4, 2),
    ConvolutionTask("alexnet-2", 64, 192, 27, 5, 1, 2),
    ConvolutionTask("alexnet-3", 192, 384, 13, 3, 1, 1),
    ConvolutionTask("alexnet-4", 384, 256, 13, 3, 1, 1),
    ConvolutionTask("alexnet-5", 256, 256, 13, 3, 1, 1),
    ConvolutionTask("vgg16-1", 3, 64, 224, 3, 1, 1),
    ConvolutionTask("vgg16-2", 64, 64, 224, 3, 1, 1),
    ConvolutionTask("vgg16-3", 64, 128, 112, 3, 1, 1),
    ConvolutionTask("vgg16-4", 128, 128, 112, 3, 1, 1),
    ConvolutionTask("vgg16-5", 128, 256, 56, 3, 1, 1),
    ConvolutionTask("vgg16-6", 256, 256, 56, 3, 1, 1),
    ConvolutionTask("vgg16-7", 256, 512, 28, 3, 1, 1),
    ConvolutionTask("vgg16-8", 512, 512, 28, 3, 1, 1),
    ConvolutionTask("vgg16-9", 512, 512, 14, 3, 1, 1),
    ConvolutionTask("resnet18-1", 3, 64, 224, 7, 2, 3),
    ConvolutionTask("resnet18-2", 64, 64, 56, 3, 1, 1),
    ConvolutionTask("resnet18-3", 64, 64, 56, 1, 1, 0),
    ConvolutionTask("resnet18-4", 64, 128, 56, 3, 2, 1),
    ConvolutionTask("resnet18-5", 64, 128, 56, 1, 2, 0),
    ConvolutionTask("resnet18-6", 128, 128, 28, 3, 1, 1),
    ConvolutionTask("resnet18-7", 128, 256, 28, 3, 2, 1),
    ConvolutionTask("resnet18-8", 128, 256, 28, 1, 2, 0),
    ConvolutionTask("resnet18-9", 256, 256, 14, 3, 1, 1),
    ConvolutionTask("resnet18-10", 256, 512, 14, 3, 2, 1),
    ConvolutionTask("resnet18-11", 256, 512, 14, 1, 2, 0),
    ConvolutionTask("resnet18-12", 512, 512, 7, 3, 1, 1),
)

# Layers L1 to L8 of table 5 of the same paper.
LAYERS = tuple(TASKS[position] for position in (0, 3, 5, 6, 8, 19, 22, 24))
