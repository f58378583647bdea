"""The page of a comparison: one HTML file with its scripts and data inside, which opens from disk."""

from __future__ import annotations

from html import escape

from fr3e_jax.studies.analysis.comparison import Comparison
from fr3e_jax.studies.analysis.comparison_content import page_content
from fr3e_jax.studies.reports.embedding import DATA_ELEMENT, asset, embed, inline_script

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def comparison_page(comparison: Comparison) -> str:
    """The whole page. It loads nothing, and the texts of runs reach it as data only."""
    content = page_content(comparison)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Comparison: {escape(content['title'])}</title>",
            f"<style>{asset('uplot/uPlot.min.css')}\n{asset('comparison/page.css')}</style>",
            "</head>",
            "<body>",
            asset("comparison/body.html"),
            f"{DATA_ELEMENT}{embed(content)}</script>",
            f"<script>{inline_script('uplot/uPlot.iife.min.js')}</script>",
            f"<script>{inline_script('comparison/page.js')}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )
