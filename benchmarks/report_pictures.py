"""The pictures of a report in ``docs/images``, from a run: ``python benchmarks/report_pictures.py RUN [DIRECTORY]``.

RUN is that of `make demo`. Chromium is the system's own (Debian: ``apt-get install chromium``); playwright, which the
tests of the page install, drives it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from playwright.sync_api import sync_playwright

COLOURS = 256  # of a picture: half of its size


class Picture(NamedTuple):
    """A view of the page: its tab, and the screen."""

    name: str
    tab: str
    width: int
    height: int
    scheme: str = "light"


PICTURES = (
    Picture("report_curves", "Curves", 1240, 860),
    Picture("report_tree", "Prompts and trees", 1240, 1150),
    Picture("report_problem", "Held-out problems", 1240, 640),
    Picture("report_dark_400", "Prompts and trees", 400, 1100, "dark"),
)


def take(run: Path, target: Path) -> None:
    """Write the pictures of ``run/report.html`` into the folder ``target``."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no chromium was found on the path; install it (apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            screen = {"width": picture.width, "height": picture.height}
            page = browser.new_context(viewport=screen, color_scheme=picture.scheme).new_page()
            page.goto((run / "report.html").resolve().as_uri())
            page.get_by_role("tab", name=picture.tab).click()
            page.wait_for_timeout(1000)  # charts are drawn after the tab has its size
            path = target / f"{picture.name}.png"
            page.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
        browser.close()


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    run = Path(sys.argv[1])
    target = Path(sys.argv[2] if len(sys.argv) == 3 else "docs/images")
    subprocess.run([sys.executable, "-m", "fr3e_jax", "report", str(run)], check=True)
    take(run, target)


if __name__ == "__main__":
    main()
