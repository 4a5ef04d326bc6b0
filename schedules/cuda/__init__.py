"""Schedule rules for CUDA, one operator family a file; the order of the list is the order in which they are asked.

What none of them takes goes to TVM's own rules for GPUs (DLight).
"""

from tvm_ext.schedules.cuda.attention import Attention
from tvm_ext.schedules.cuda.elementwise import Elementwise
from tvm_ext.schedules.cuda.matmul import Matmul
from tvm_ext.schedules.cuda.nested import Nested
from tvm_ext.schedules.cuda.open_product import OpenProduct
from tvm_ext.schedules.cuda.parallel_loops import ParallelLoops
from tvm_ext.schedules.cuda.recurrence import Recurrence
from tvm_ext.schedules.cuda.row_reduction import RowReduction
from tvm_ext.schedules.cuda.tensor_matmul import TensorMatmul
from tvm_ext.schedules.cuda.transpose import Transpose
from tvm_ext.schedules.cuda.warpgroup_matmul import WarpgroupMatmul
from tvm_ext.schedules.cuda.window import Window

_OTHERS = (Matmul(), RowReduction(), Window(), Transpose(), Elementwise(), Recurrence(), ParallelLoops(), Nested())

RULES = (Attention(), OpenProduct(), WarpgroupMatmul(), TensorMatmul(), *_OTHERS)

TF32_RULES = (Attention(), OpenProduct(tf32=True), WarpgroupMatmul(), TensorMatmul(tf32=True), *_OTHERS)
"""Those that round operands of float32 to tf32, so that tensor cores multiply them."""
