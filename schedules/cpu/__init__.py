"""Schedule rules for CPUs, one operator family a file; the order of the list is the order in which they are asked."""

from tvm_ext.schedules.cpu.conv2d import Convolution
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.matmul import Matmul
from tvm_ext.schedules.cpu.window import GlobalAverage, SlidingWindow

RULES = (
    Convolution(),
    Matmul(),
    SlidingWindow(),
    GlobalAverage(),
    Elementwise(),
)
