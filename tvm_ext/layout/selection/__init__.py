"""Select instructions and layouts for a whole graph. Plain data only: costs come from whoever asks.

Examples
--------
Each operator alone would take the plan that costs 10; together, one relayout less is cheaper.

>>> from tvm_ext.layout.selection import Operator, Plan, SelectionProblem, edge_between
>>> from tvm_ext.layout.selection import plan_locally, plan_selection, verify_selection
>>> wide, narrow = Plan("vrmpy", 10, "4-column", "4-column"), Plan("vmpa", 12, "2-column", "2-column")
>>> fixed = Plan("vmpa", 30, "2-column", "2-column")
>>> operators = (Operator("first", (wide, narrow)), Operator("second", (fixed,)), Operator("third", (wide, narrow)))
>>> edges = tuple(edge_between(operators, name, name + 1, lambda before, after: 5) for name in range(2))
>>> problem = SelectionProblem(operators, edges)
>>> selection = plan_selection(problem)
>>> selection.choice, selection.cost, plan_locally(problem).cost
((1, 0, 1), 54, 60)
>>> verify_selection(selection, problem)
"""

from tvm_ext.layout.selection.exact import ExactSelection, solve_selection
from tvm_ext.layout.selection.partition import Partition, is_desirable, partition
from tvm_ext.layout.selection.planner import PART_SIZE, Selection, plan_locally, plan_selection
from tvm_ext.layout.selection.problem import Edge, Operator, Plan, SelectionProblem, edge_between
from tvm_ext.layout.selection.verify import verify_selection

__all__ = [
    "PART_SIZE",
    "Edge",
    "ExactSelection",
    "Operator",
    "Partition",
    "Plan",
    "Selection",
    "SelectionProblem",
    "edge_between",
    "is_desirable",
    "partition",
    "plan_locally",
    "plan_selection",
    "solve_selection",
    "verify_selection",
]
