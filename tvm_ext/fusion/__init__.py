"""Operator fusion by mapping types: which operators become one kernel, decided on plain data.

After Niu et al., "DNNFusion: Accelerating Deep Neural Networks Execution with Advanced Operator Fusion", PLDI 2021.

- :mod:`~tvm_ext.fusion.combination`: the table of 5 x 5 combinations;
- :mod:`~tvm_ext.fusion.operator_graph`: a function as operators, with the mapping type of every edge;
- :mod:`~tvm_ext.fusion.planner`: seeds, growth, latency where the table asks for it;
  :mod:`~tvm_ext.fusion.refinement`: operators move between blocks; :mod:`~tvm_ext.fusion.limits` of a block;
  :mod:`~tvm_ext.fusion.verifier` checks a plan by other means;
- :mod:`~tvm_ext.fusion.cost_model` and :mod:`~tvm_ext.fusion.profile_database`: where latencies come from.
"""
