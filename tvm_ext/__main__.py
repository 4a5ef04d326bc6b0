"""``python -m tvm_ext`` is the command line ``tvm-ext``."""

from tvm_ext.cli.main import main

main()
