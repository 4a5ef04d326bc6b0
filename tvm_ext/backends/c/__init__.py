"""C sources of compiled models, which need neither TVM nor a heap."""
