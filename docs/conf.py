"""Settings of the documentation: `sphinx-build -W docs site`."""

import mmcl_lightning

project = "mmcl-lightning"
author = "the mmcl-lightning authors"
copyright = author
release = version = mmcl_lightning.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["results/ledger"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3  # links to headings, as on GitHub

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "mmcl-lightning"
