"""How Sphinx builds the documentation: ``make docs``. Nothing is fetched, and a warning is an error."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

from host import __version__

project = "ors-host"
author = "the authors of ors-host"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "from_source",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_type_aliases = {"Blocks": "Blocks", "JSONObject": "JSONObject"}
autodoc_member_order = "bysource"
napoleon_google_docstring = True
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"ors-host {version}"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
