"""Parts of ``scripts/check_trust.py``: each module has ``add_arguments(parser)`` and ``measure(arguments)``."""
