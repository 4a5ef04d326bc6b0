"""Sphinx configuration; ``make docs`` builds with it."""

project = "tvm-ext"
author = "The tvm-ext authors"
copyright = "the tvm-ext authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "results"]
html_theme = "furo"
html_title = "tvm-ext"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
