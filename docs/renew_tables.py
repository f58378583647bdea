"""Renew the tables of docs/users/methods.md and docs/users/metrics.md: ``python docs/renew_tables.py``."""

from __future__ import annotations

from pathlib import Path

from fr3e_jax.methods import markdown_table
from fr3e_jax.runs.metrics_page import metrics_table

USERS = Path(__file__).resolve().parent / "users"
TABLES = {USERS / "methods.md": markdown_table, USERS / "metrics.md": metrics_table}
BEGIN, END = "<!-- table: docs/renew_tables.py -->\n", "<!-- end of the table -->\n"


def renewed(page: Path) -> str:
    """The text of a page with its table as it is now."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{TABLES[page]()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for path in TABLES:
        path.write_text(renewed(path), encoding="utf-8")
