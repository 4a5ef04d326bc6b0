"""The command line ``tvm-ext``: one file per command."""
