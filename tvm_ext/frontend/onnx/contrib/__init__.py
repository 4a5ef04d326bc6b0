"""Operators that onnxruntime adds to ONNX (domain ``com.microsoft``), as Relax expressions."""
