"""ONNX operators that TVM's importer lacks or gets wrong, as Relax expressions."""
