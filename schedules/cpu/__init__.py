"""Schedule rules for CPUs, one operator family a file; the order of the list is the order in which they are asked."""

from tvm_ext.schedules.cpu.attention import Attention
from tvm_ext.schedules.cpu.blocked_norm import BlockedNorm
from tvm_ext.schedules.cpu.channel_norm import ChannelNorm
from tvm_ext.schedules.cpu.conv2d_int8 import Conv2DInt8
from tvm_ext.schedules.cpu.convolution import Convolution
from tvm_ext.schedules.cpu.depthwise_int8 import DepthwiseInt8
from tvm_ext.schedules.cpu.elementwise import Elementwise
from tvm_ext.schedules.cpu.embedded import Embedded
from tvm_ext.schedules.cpu.excitation import Excitation
from tvm_ext.schedules.cpu.fallback import Fallback
from tvm_ext.schedules.cpu.inverted_residual import InvertedResidual
from tvm_ext.schedules.cpu.matmul import Matmul
from tvm_ext.schedules.cpu.matvec import Matvec
from tvm_ext.schedules.cpu.open_convolution import OpenConvolution
from tvm_ext.schedules.cpu.open_extents import OpenExtents
from tvm_ext.schedules.cpu.open_integer import OpenInteger
from tvm_ext.schedules.cpu.open_product import OpenProduct
from tvm_ext.schedules.cpu.open_window import OpenWindow
from tvm_ext.schedules.cpu.open_winograd import OpenWinograd
from tvm_ext.schedules.cpu.plane_pool import PlanePool
from tvm_ext.schedules.cpu.plane_window import PlaneWindow
from tvm_ext.schedules.cpu.pooled_convolution import PooledConvolution
from tvm_ext.schedules.cpu.recurrence import RecurrentProduct
from tvm_ext.schedules.cpu.resampling import Resampling
from tvm_ext.schedules.cpu.response import LocalResponse
from tvm_ext.schedules.cpu.row_reduction import RowReduction
from tvm_ext.schedules.cpu.strassen import Strassen
from tvm_ext.schedules.cpu.transpose import Transpose
from tvm_ext.schedules.cpu.window import GlobalAverage, SlidingWindow
from tvm_ext.schedules.cpu.winograd import Winograd
from tvm_ext.schedules.cpu.winograd_strips import WinogradStrips

RULES = (
    Excitation(),
    PooledConvolution(),
    Convolution(),
    OpenConvolution(),
    OpenInteger(),
    OpenWinograd(),
    OpenWindow(),
    OpenProduct(),
    Embedded(),
    InvertedResidual(),
    WinogradStrips(),
    Winograd(),
    Conv2DInt8(),
    DepthwiseInt8(),
    Attention(),
    Matvec(),
    Strassen(),
    Matmul(),
    PlaneWindow(),
    PlanePool(),
    SlidingWindow(),
    GlobalAverage(),
    LocalResponse(),
    BlockedNorm(),
    ChannelNorm(),
    RecurrentProduct(),
    RowReduction(),
    Transpose(),
    Resampling(),
    Elementwise(),
    Fallback(),
    OpenExtents(),
)
