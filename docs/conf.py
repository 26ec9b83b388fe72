"""The configuration of the documentation site. `python -m docs` builds it."""

import placer
from docs.site import links
from docs.site.paths import DOCS
from docs.site.redirects import REDIRECTS

project = "placer"
author = "The authors of placer"
release = version = placer.__version__
html_title = "placer"
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "notfound.extension",
    "sphinx_reredirects",
    "docs.site.docstrings",
    "docs.site.llms",
    "docs.site.placement_directive",
    "docs.site.search",
    "docs.site.signatures",
    "docs.site.terminal_directive",
    "docs.site.versions",
]
exclude_patterns = ["site", "pictures"]
templates_path = ["site/templates"]
html_static_path = ["site/assets"]
html_favicon = "site/assets/icon.svg"
html_css_files = ["style.css"]
html_search_scorer = str(DOCS / "site" / "assets" / "search.js")
html_js_files = ["versions.js"]
redirects = REDIRECTS
notfound_urls_prefix = "/"

# Text
default_role = "code"
smartquotes = False
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Python
autodoc_typehints = "signature"
# Pages list members with `:members:`; a default here would replace their lists.
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
python_maximum_signature_line_length = 72
# Types of signatures that are no names of the reference.
nitpick_ignore_regex = [("py:.*", r"(?!placer\.[a-z]+$).*")]

# Appearance
html_theme = "pydata_sphinx_theme"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "placer"},
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_center": ["navbar-nav"],
    "navbar_end": ["versions.html", "theme-switcher"],
    "navbar_persistent": ["search-button-field"],
    "show_toc_level": 2,
    "show_nav_level": 1,
    "footer_start": ["footer.html"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "primary_sidebar_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "back_to_top_button": False,
}
html_context = {"default_mode": "auto", "repository": links.repository()}


def _change_links(app, docname, content):
    name = f"docs/{docname}.md"
    content[0] = links.change_links(content[0], name)


def setup(app):
    """Change links before pages are read."""
    app.connect("source-read", _change_links)
