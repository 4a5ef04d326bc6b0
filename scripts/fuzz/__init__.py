"""Random models that somebody else draws: NNSmith's graphs, compiled with drawn options and compared with onnxruntime.

`draw` makes the graph, `emit` writes it as ONNX, `values` fills it, `options` says how to compile it; `trial` compiles
and runs it and `judge` compares; `workers` run trials in processes with a time limit; `reduce` makes failures small and
`store` keeps them. Nothing but `draw` and `emit` needs NNSmith.
"""
