"""The site: `make docs` builds it from README.md, docs/ and the docstrings, and stops at the first warning."""

from __future__ import annotations

import diffretriever

project, release = "DiffRetriever", diffretriever.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md", "build/reference/*.md"]
exclude_patterns = [".*", "build/site"]
html_theme, html_title = "furo", "DiffRetriever"
html_show_copyright = False
myst_heading_anchors = 4
# Pygments cannot highlight a console session with a command over several lines.
suppress_warnings = ["misc.highlighting_failure"]
# Docstrings put code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Public names load on first use; autodoc reads what is loaded.
for name in diffretriever.__all__:
    setattr(diffretriever, name, getattr(diffretriever, name))
