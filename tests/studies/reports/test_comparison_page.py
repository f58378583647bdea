"""The page of a comparison: what it holds, and what a browser makes of it."""

import base64
import gzip
import html
import json
import re
import shutil
import subprocess

import pytest
from made_up_runs import made_up_run, spending

from fr3e_jax.studies.analysis.comparison import compare
from fr3e_jax.studies.analysis.run_groups import collect
from fr3e_jax.studies.reports.comparison_page import comparison_page

HOSTILE = "</script><img src=x onerror=\"document.title='taken'\">\u202e\x1b[31m<!--"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def page(tmp_path):
    """The file of a page on two groups, one with a hostile name."""
    for anchors in (4, 2):
        for seed in (0, 1):
            made_up_run(
                tmp_path / "runs" / f"{anchors}-{seed}",
                settings=[f"explore.num_anchors={anchors}"],
                seed=seed,
                training={step: spending(100, cpu=5.0 * step) for step in (1, 2, 3)},
                evaluations={0: {"avg@16": 0.25}, 3 - seed: {"avg@16": 0.5 + seed / 4}},
                finished=seed == 0,
            )
    path = tmp_path / "page.html"
    path.write_text(comparison_page(compare(collect([tmp_path / "runs"]), labels=[HOSTILE, "plain"])), encoding="utf-8")
    return path


def test_the_page_loads_nothing_and_holds_its_data_as_text_without_markup(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(
        r"(src|href)\s*=\"(?!data:,)", re.sub(r"<script>.*?</script>|<title>.*?</title>", "", text, flags=re.S)
    )
    assert "default-src 'none'" in text and "<img" not in text
    [packed] = re.findall(r'id="main">([^<]*)</script>', text)
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert data["groups"][0]["label"] == HOSTILE
    curve = data["curves"]["avg@16"]["sampled_tokens"]
    assert (curve["x"], curve["groups"][1]["mean"]) == ([0, 200, 300], [0.25, pytest.approx(0.5833333), None])


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which is not installed")
def test_a_browser_shows_the_numbers_of_the_runs_and_the_hostile_name_as_text(page, tmp_path):
    """Seed 1 ends at 200 tokens with 0.75; seed 0 is then two thirds of the way from 0.25 to 0.5."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--virtual-time-budget=5000", "--dump-dom", f"file://{page}"]
    dom = subprocess.run([CHROMIUM, *options], capture_output=True, timeout=120).stdout.decode()
    assert 'data-ready="yes"' in dom and "<title>Comparison:" in dom and "taken</title>" not in dom
    middle = 0.25 + 0.25 * 2 / 3
    points = [html.unescape(text).splitlines() for text in re.findall(r'data-told="([^"]*)"', dom)]
    assert points[-1][0] == "plain" and points[-1][1:] == [
        "sampled tokens: 200",
        f"avg@16, held-out: {(middle + 0.75) / 2:.4g} [{middle:.4g}, 0.75]",
    ]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", re.search(r'<div[^>]* id="figure-runs">.*?</table>', dom, re.S)[0])
    assert cells[0].startswith("&lt;/script&gt;&lt;img src=x") and "⟨U+202E⟩" in cells[0] and "300" in cells
    flags = re.search(r'aria-label="before you compare".*?</ul>', dom, re.S)[0]
    assert flags.count("<li>") == 2 and "is interrupted at step 3" in flags and "<img" not in dom
