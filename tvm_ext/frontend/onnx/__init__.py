"""From an ONNX file to a Relax module."""
