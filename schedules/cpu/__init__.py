"""Schedule rules for CPUs, one operator family a file; the order of the list is the order in which they are asked."""

from tvm_ext.schedules.cpu.conv2d import Conv2D
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.window import GlobalAverage, SlidingWindow

RULES = (
    Conv2D(),
    SlidingWindow(),
    GlobalAverage(),
    Elementwise(),
)
