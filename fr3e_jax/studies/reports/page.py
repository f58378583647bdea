"""One HTML file from data and assets: scripts, styles and data lie inside, and nothing can be loaded from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping, Sequence

from fr3e_jax.studies.reports.embedding import asset

STYLES = ("uplot/uPlot.min.css", "page/style.css")
DRAWING_SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    *(f"page/{name}.js" for name in ("dom", "theme", "unpack", "outcomes", "chart", "saving", "figures")),
)
"""The scripts of figures and tables, for any page."""

_POLICY = (
    "default-src 'none'; script-src {script}; style-src {style}; img-src data:; base-uri 'none'; form-action 'none'"
)


def assemble(
    title: str, content: str, *, scripts: Sequence[str], data: Mapping[str, str], same_origin: bool = False
) -> str:
    """The page.

    Args:
      title: text of its title.
      content: asset with the markup that the scripts fill.
      scripts: assets that become one script, in this order.
      data: embedded data by the id of the element that holds it (`embed`).
      same_origin: allow the script to ask the server that served the page; a file from disk asks nobody.
    """
    script = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in scripts) + "\n})();"
    style = "\n".join(asset(name) for name in STYLES)
    policy = _POLICY.format(script=_hash_of(script), style=_hash_of(style))
    if same_origin:
        policy += "; connect-src 'self'"
    elements = "\n".join(f'<script type="text/plain" id="{name}">{text}</script>' for name, text in data.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{style}</style>
</head>
<body>
<div id="page">
{asset(content)}</div>
<noscript>This page draws with JavaScript. It loads nothing from a network.</noscript>
{elements}
<script>{script}</script>
</body>
</html>
"""


def _hash_of(text: str) -> str:
    """The source expression of a content security policy that allows this inline text and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
