"""Graph rewriting by mathematical properties: fewer operations for the same values, decided on plain data.

After Niu et al., "DNNFusion: Accelerating Deep Neural Networks Execution with Advanced Operator Fusion", PLDI 2021,
section 4.2.

- :mod:`~tvm_ext.algebra.term`: expressions as shared terms with shapes;
- :mod:`~tvm_ext.algebra.operators`: the operators of terms;
- :mod:`~tvm_ext.algebra.rule`: a rule is a row of text, ``before`` and ``after``; the rows are in
  :mod:`~tvm_ext.algebra.rules`;
- :mod:`~tvm_ext.algebra.search`: the largest gain first, and a bounded best-first search;
- :mod:`~tvm_ext.algebra.centering`: means that vanish when weights are centred.
"""
