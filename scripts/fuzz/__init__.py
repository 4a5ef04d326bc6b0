"""Random models, compiled with drawn options and compared with onnxruntime.

Two kinds are drawn. `draw` makes graphs of any operators, by NNSmith, and `emit` writes them as ONNX; `networks` makes
networks of `image_blocks` and `token_blocks`, which `layers` writes, in the `forms` in which files come; small ones run
on simulated accelerators, too (`on_vta`, `on_hexagon`). `values` fills inputs, `options` says how to compile; `trial`
compiles and runs and `judge` compares; `workers` run trials in processes with a time limit; `reduce` makes failures
small and `store` keeps them. Nothing but `draw` and `emit` needs NNSmith.
"""
