"""The page in headless Chromium, from disk and without a network: it shows the stored numbers, and texts do nothing.

Chromium is the system's own (Debian: ``apt-get install chromium``); playwright drives it and downloads none.
"""

import itertools
import re
import shutil
import threading
from functools import partial

import numpy as np
import pytest
from made_up_runs import write_comparison_page
from reported_runs import LONG_QUESTION, STEPS, write_answers, write_long_run, write_reported_run

from fr3e_jax.runs.metrics import MetricsWriter
from fr3e_jax.studies.analysis.catalogue import findings
from fr3e_jax.studies.analysis.comparison import compare
from fr3e_jax.studies.analysis.figure import Figure, HeatMap, Series, TextTable
from fr3e_jax.studies.analysis.run_groups import collect
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.reports.comparison_page import comparison_page
from fr3e_jax.studies.reports.rollout_trees import DECIMALS
from fr3e_jax.studies.reports.run_page import run_page
from fr3e_jax.studies.reports.server import LivePage, make_server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine (apt-get install chromium)"),
]
LONG_NAME = "a name that is longer than any other name in all of these figures"
FINDINGS = [
    Figure(
        name="lines",
        title="Lines",
        y_label="share",
        series=[
            Series("<b>a", [1, 2, 3], [0.1, None, 0.3], [0, None, 0], [1, None, 1]),
            Series("short", [1, 2], [0.4, 0.5]),
        ],
    ),
    Figure(
        name="bars",
        title="Bars",
        kind="bars",
        x_label="name",
        y_label="count",
        series=[Series("a", ["x", "<i>y", LONG_NAME], [1, 2, 1]), Series("b", ["x"], [3])],
    ),
    Figure(name="log", title="Logarithmic", y_label="y", series=[Series("a", [1, 10, 100], [1, 2, 3])], log_x=True),
    HeatMap(
        name="heat",
        title="Heat",
        x_label="step",
        y_label="problem",
        columns=[1, 2],
        lines=[LONG_NAME, "q"],
        values=[[0.0, 0.5], [None, 0.75]],
        unit="reward",
    ),
    TextTable(name="tokens", title="Tokens", columns=["token", "n"], cells=[["<script>alert(1)</script>", 3]]),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is in requirements-dev.txt")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "<b>made_up"
    stored = write_reported_run(path, hostile=True)
    run = StoredRun.open(path)
    (path / "report.html").write_text(run_page(run, [*findings(run), *FINDINGS]), encoding="utf-8")
    return path / "report.html", stored


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "long"
    stored = write_long_run(path)
    (path / "report.html").write_text(run_page(StoredRun.open(path), []), encoding="utf-8")
    return path / "report.html", stored


class Shown:
    """A page in a context without network. It notes console messages, errors, dialogs and requests."""

    def __init__(self, browser, file, *, width=1280, dark=False, address=""):
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        self.page = self.context.new_page()
        self.complaints = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.requested(request.url))
        self.page.goto(f"file://{file.parent.as_posix().replace('<', '%3C').replace('>', '%3E')}/{file.name}{address}")
        self.page.wait_for_selector("html[data-ready=yes]")

    def requested(self, url):
        if not url.startswith(("file:", "data:")):
            self.complaints.append(f"request: {url}")

    def fact(self, label, name):
        text = self.page.locator(f'dl[aria-label="{label}"] dd[data-fact="{name}"]').first.inner_text()
        return text.replace("−", "-")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.context.close()
        if error == (None, None, None):
            assert self.complaints == []


def test_clicks_lead_from_a_curve_to_a_token_with_the_stored_numbers(browser, made_up):
    file, stored = made_up
    with Shown(browser, file) as shown:
        page = shown.page
        over = page.locator(".chart", has=page.get_by_role("heading", name="Reward")).locator(".u-over")
        box = over.bounding_box()
        over.click(position={"x": box["width"] / 2, "y": box["height"] / 2})  # the second of three steps
        assert page.locator("#view-prompts").get_by_label("search").input_value() == "step=2"
        assert page.locator("#view-prompts .list li").count() == 13
        page.locator(".list li button", has_text="2+20=").click()
        assert page.get_by_label("question", exact=True).inner_text() == "2+20="
        for identity, index in (("2/20/0", 3), ("2/20/0/1/1", 0), ("2/20/0/2/0", 4), ("2/20/3", 2)):
            record = stored[identity]
            lane = page.locator(f'.tree .lane[aria-label^="{_name(record)}:"]')
            lane.locator(f'[data-token="{index}"]').click()
            assert shown.fact("rollout", "id") == identity
            assert float(shown.fact("token", "log-prob")) == np.round(record.logprobs[index], DECIMALS["logprobs"])
            assert float(shown.fact("token", "entropy")) == np.round(record.entropies[index], DECIMALS["entropies"])
            assert shown.fact("token", "id") == str(record.token_ids[index])
            assert shown.fact("token", "position") == str(record.fork + index)
            assert float(shown.fact("token", "probability")) == pytest.approx(np.exp(record.logprobs[index]), rel=1e-3)
            assert float(shown.fact("rollout", "reward")) == record.reward
            advantage = shown.fact("rollout", "advantage")
            assert advantage == "–" if record.advantage is None else float(advantage) == record.advantage
            assert (shown.fact("token", "trained") == "yes") == (record.advantage is not None)
        pin = page.locator('.tree .pin[data-state="1"] title')
        assert pin.text_content() == "S₁: V 0.667, ΔV +0.417, α 0.700"


def _name(record):
    if record.kind == "state":
        return f"S{'₀₁₂'[record.state]}, branch {record.branch}"
    return f"trunk, base rollout {record.base}" if record.anchors else f"base rollout {record.base}"


def test_first_screen_says_what_happened_and_leads_to_what_is_wrong(browser, made_up):
    with Shown(browser, made_up[0]) as shown:
        page = shown.page
        assert page.locator(".verdict").inner_text().startswith("learned: avg@2 12.5% → 50.0% at step 3; entropy fell")
        assert page.locator('.headline dd[data-fact="method"]').inner_text() == "FR3E"
        assert page.locator('.headline dd[data-fact="sampled tokens"]').inner_text() == "3,000"
        page.get_by_label("look at").get_by_role("button", name="6 responses have no verdict").click()
        assert page.locator("#view-prompts").get_by_label("filter").input_value() == "trouble"
        assert page.locator("#view-prompts .list li").count() == STEPS
        page.get_by_role("tab", name="Curves").click()
        page.get_by_label("look at").get_by_role("button", name="the learning rate is 0").click()
        assert page.locator(".chart.pointed h3").inner_text() == "learning_rate (rate)"
        page.get_by_label("held-out problems", exact=True).get_by_role(
            "button", name="1 problem (1 since step 3)"
        ).click()
        problems = page.locator("#view-held-out")
        assert problems.get_by_label("filter").input_value() == "learned"
        assert problems.get_by_label("order").input_value() == "earliest"
        (entry,) = problems.locator(".list li").all_text_contents()
        assert "held out 0" in entry and "since step 3" in entry


def test_an_address_without_a_place_in_the_run_shows_what_its_filter_lists(browser, made_up):
    with Shown(browser, made_up[0], address="#view=prompts&filter=cut") as shown:
        listed = shown.page.locator("#view-prompts .list li button")
        assert listed.count() == STEPS
        assert listed.nth(1).get_attribute("aria-current") == "true"
    with Shown(browser, made_up[0], address="#view=held-out&filter=unsolved") as shown:
        problems = shown.page.locator("#view-held-out")
        assert problems.locator(".list li button").get_attribute("aria-current") == "true"
        assert problems.get_by_label("search").get_attribute("placeholder").startswith("words")
        assert "reward" not in problems.get_by_label("search").get_attribute("placeholder")  # they have no bounds
    for token in ("nonsense", "-1", "99999", "1.5"):
        with Shown(browser, made_up[0], address=f"#prompt=2/20&rollout=2/20/0&token={token}&zoom=9") as shown:
            shown.page.wait_for_selector(".tree .lane.trunk.selected")
            assert shown.page.locator(".tree .scroll").evaluate("node => node.scrollLeft") == 0
            assert "token=" not in shown.page.url


def test_the_tab_of_the_view_is_in_sight_on_a_phone(browser, made_up):
    with Shown(browser, made_up[0], width=400, address="#view=settings") as shown:
        box = shown.page.get_by_role("tab", name="Settings").bounding_box()
        assert 0 <= box["x"] and box["x"] + box["width"] <= 400


def test_settings_are_found_by_name_and_value_in_any_case(browser, made_up):
    with Shown(browser, made_up[0], address="#view=settings&search=Store_Rollouts") as shown:
        assert "runtime.store_rollouts" in shown.page.locator("#view-settings").inner_text()


def test_labels_of_an_axis_have_the_digits_of_their_distances(browser, made_up):
    with Shown(browser, made_up[0]) as shown:
        chart = shown.page.locator(".chart", has=shown.page.get_by_role("heading", name="Entropy")).locator(".plot")
        written = chart.evaluate(
            "({plot}) => plot.axes[1].values(plot, [0.1275, 0.13, 0.1325, 0.135, 12.5, 1232.5], 1, 20, 0.0025)"
        )
        assert written == ["0.1275", "0.13", "0.1325", "0.135", "12.5", "1232.5"]


def test_long_names_and_answers_leave_room_for_the_tree(browser, tmp_path):
    path = tmp_path / ("a-very-long-name-" * 12)
    write_answers(path, "סכום 7", "تفاحة\n" * 40)
    (path / "report.html").write_text(run_page(StoredRun.open(path), []), encoding="utf-8")
    with Shown(browser, path / "report.html", address="#prompt=1/0", width=400) as shown:
        assert shown.page.locator("header").bounding_box()["height"] < 160
        answer = shown.page.locator('[data-fact="answer"] .text')
        assert answer.bounding_box()["height"] < 100 < answer.evaluate("node => node.scrollHeight")
        order = "nodes => nodes.slice(0, 3).map((node) => node.getBoundingClientRect().left)"
        places = shown.page.locator(".reading .tk").evaluate_all(order)
        assert places[0] > places[2]  # Arabic runs from right to left


def test_every_family_of_metrics_has_a_chart_with_gaps_over_each_axis(browser, made_up):
    with Shown(browser, made_up[0]) as shown:
        page = shown.page
        titles = page.locator(".chart h3").all_inner_texts()
        assert {"returns/depth (share)", "my/own", "<b>x</b>", "Verdicts"} <= set(titles)
        depth = page.locator(".chart", has=page.get_by_role("heading", name="returns/depth"))
        plotted = (
            "node => { const plot = node.querySelector('.plot').plot; return [plot.data, plot.series[1].spanGaps]; }"
        )
        assert depth.evaluate(plotted) == [[[1, 2, 3], [0.5, None, 0.5]], False]
        page.get_by_label("axis of the curves").select_option("sampled_tokens")
        assert depth.evaluate(plotted)[0][0] == [1000, 2000, 3000]
        held_out = page.locator(".chart", has=page.get_by_role("heading", name="Held-out problems"))
        assert held_out.evaluate(plotted)[0][0] == [0, 3000]
        page.get_by_label("find a metric").fill("DEPTH")
        page.wait_for_url(re.compile("#view=curves&axis=sampled_tokens&search=DEPTH$"))
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        assert page.locator(".chart h3").all_inner_texts() == ["returns/depth (share)"]


def test_bars_stand_on_zero_and_ticks_tell_values_apart(browser, tmp_path):
    path = tmp_path / "run"
    write_reported_run(path)
    metrics = MetricsWriter(StoredRun.open(path).directory, resume_step=STEPS)
    for step in range(STEPS + 1, STEPS + 9):
        metrics.write(step, {"base_groups/all_wrong": 50, "length/mean": 1e3 + step / 1e4, "loss/policy": 1e300})
    (path / "report.html").write_text(run_page(StoredRun.open(path), []), encoding="utf-8")
    with Shown(browser, path / "report.html") as shown:
        chart = {
            name: shown.page.locator(".chart", has=shown.page.get_by_role("heading", name=name))
            for name in ("Prompts by their base rollouts", "Response length", "Loss")
        }
        bars, lines, huge = chart.values()
        assert bars.evaluate("node => node.querySelector('.plot').plot.scales.y.min") == 0
        assert bars.evaluate("node => node.querySelector('.plot').plot.scales.x.max") == STEPS + 8.5
        ticks = lines.evaluate("node => node.querySelector('.plot').plot.axes[1]._values")
        assert len({*ticks}) == len(ticks) > 2
        assert _legend(huge)[1] == ["policy", "1.00e+300"]


def test_a_run_that_was_only_evaluated_has_a_page(browser, tmp_path):
    path = tmp_path / "run"
    write_reported_run(path)
    for stored in (*(path / "rollouts").iterdir(), path / "metrics.jsonl"):
        stored.unlink()
    MetricsWriter(StoredRun.open(path).directory, resume_step=None).write(0, {"greedy": 0.25}, kind="eval")
    (path / "report.html").write_text(run_page(StoredRun.open(path)), encoding="utf-8")
    with Shown(browser, path / "report.html") as shown:
        assert shown.page.locator(".verdict").inner_text() == "greedy 25.0% before training, not evaluated since"
        assert shown.page.locator(".chart").count() == 1
        for tab, asked in (("Prompts and trees", "Choose a prompt."), ("Held-out problems", "Choose a problem.")):
            shown.page.get_by_role("tab", name=tab).click()
            assert not shown.page.get_by_text(asked).is_visible()


def test_a_chart_is_saved_as_numbers_and_as_a_picture(browser, made_up):
    with Shown(browser, made_up[0]) as shown:
        chart = shown.page.locator(".chart", has=shown.page.get_by_role("heading", name="<b>x</b>"))
        with shown.page.expect_download() as saved:
            chart.get_by_role("button", name="save as CSV").click()
        assert saved.value.path().read_text() == '"step","<b>x</b>"\n1,1\n2,1\n3,1\n'


def test_two_branches_lie_side_by_side_with_their_first_difference(browser, made_up):
    file, stored = made_up
    with Shown(browser, file, address="#prompt=1/10&rollout=1/10/0/2/0") as shown:
        page = shown.page
        page.locator('.tree .lane[aria-label^="S₂, branch 1:"]').click(modifiers=["Shift"])
        panels = page.locator(".reading.two .panel")
        assert panels.count() == 2
        one, other = (stored[f"1/10/0/2/{branch}"] for branch in (0, 1))
        first = next(i for i, (a, b) in enumerate(itertools.zip_longest(one.token_ids, other.token_ids)) if a != b)
        marked = page.locator(".tk.first-difference")
        assert [marked.nth(i).get_attribute("data-at") for i in range(2)] == [str(7 + first)] * 2
        whole = [*stored["1/10/0"].token_ids[:7], *one.token_ids]
        text = StoredRun.open(file.parent).codec.decode(whole, special_tokens=True)
        assert page.get_by_label("text of S₂, branch 0").inner_text().strip() == text
        page.wait_for_url(re.compile("rollout=1/10/0/2/0&beside=1/10/0/2/1$"))
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        assert page.locator(".reading.two .panel").count() == 2


def test_a_kept_success_is_the_trunk_of_its_continuations_of_every_visit(browser, made_up):
    file, stored = made_up
    with Shown(browser, file, address="#prompt=3/13") as shown:
        page = shown.page
        lanes = page.locator(".tree .lane")
        labels = [lanes.nth(n).get_attribute("aria-label").partition(":")[0] for n in range(lanes.count())]
        assert labels == [
            "trunk, base rollout 0 of step 1",
            *(f"S{state}, branch {branch}" for state in "₂₁" for branch in (0, 1)),
        ]
        heads = page.locator(".tree .label").all_text_contents()
        assert [head.partition("V")[0].strip() for head in heads] == ["S₂, from token 5", "S₁, from token 2"]
        lanes.nth(4).click()
        assert page.get_by_label("text of S₁, branch 1").inner_text().startswith("answer 0 no")
        lanes.nth(1).click(modifiers=["Shift"])  # of the other depth: the texts part after the whole of "answer 0"
        assert page.get_by_text("first difference at token 8").count() == 2
        visits = page.get_by_label("visit", exact=True)
        assert visits.locator("option").all_inner_texts() == [
            f"step {step}: from token {8 - 2 * step}, {8 - step}: 3 of 4 right" for step in (2, 3)
        ]
        tree, chart = (page.locator(name).bounding_box() for name in (".tree", "#figure-visits"))
        assert tree["y"] + tree["height"] < chart["y"], "the tree comes first"
        visits.select_option("2")
        page.wait_for_url(re.compile("prompt=2/13"))
        page.get_by_role("button", name="show its prompt").click()
        page.wait_for_url(re.compile("prompt=1/13&rollout=1/13/0"))
        assert page.get_by_label("visit", exact=True).is_visible()


def test_the_list_tells_what_a_prompt_has(browser, made_up):
    """Entries of a kept success have their own counts; without a verdict nothing is wrong, nor hard."""
    with Shown(browser, made_up[0], address="#view=prompts&search=step%3D2") as shown:
        page = shown.page.locator("#view-prompts")
        entries = page.locator(".list li")
        returned = entries.filter(has_text="question 13")
        assert "3/4" in returned.text_content() and "of a kept response" in returned.text_content()
        timed_out = entries.filter(has_text="question 22")
        assert "0/2" not in timed_out.text_content() and timed_out.locator(".share").get_attribute("title").startswith(
            "no verdict"
        )
        ends = "bar => ['--right-end', '--wrong-end'].map((end) => bar.style.getPropertyValue(end))"
        assert timed_out.locator(".share").evaluate(ends) == ["0%", "0%"]
        assert returned.locator(".share").evaluate(ends) == ["75%", "100%"]
        page.get_by_label("order").select_option("hardest")
        assert "question 22" in entries.last.text_content() and "question 13" not in entries.first.text_content()
        page.get_by_label("filter").select_option("all_wrong")
        assert (
            "question 22" not in page.locator(".list").text_content() and "question 24" in entries.first.text_content()
        )
        page.get_by_label("filter").select_option("returned")
        assert entries.count() == 2


def test_the_gold_answer_the_answer_and_the_reason_stand_beside_each_response(browser, made_up):
    with Shown(browser, made_up[0], address="#prompt=1/14") as shown:
        page = shown.page
        facts = {name: shown.fact("verdict", name) for name in ("answer", "gold answer", "reason")}
        assert facts == {
            "answer": "none",
            "gold answer": "10",
            "reason": "the length cap ended it before an answer",
        }
        page.evaluate("location.hash = 'prompt=1/10&rollout=1/10/0'")
        page.wait_for_url(re.compile("prompt=1/10"))
        answer = page.locator('dl[aria-label="verdict"] dd[data-fact="answer"]').first
        answer.get_by_text("7 plus 5 is 13", exact=True).wait_for()  # of the task Order, the text after the last ">"
        assert shown.fact("verdict", "reason") == "not the gold answer"
        page.get_by_role("tab", name="Held-out problems").click()
        samples = page.locator(".answer").first.get_by_role("button")
        assert [samples.nth(n).get_attribute("aria-label").partition(":")[0] for n in range(3)] == [
            "greedy answer",
            "sample 1",
            "sample 2",
        ]
        assert page.locator(".answer").first.get_by_label("verdict").inner_text().endswith("the verifier rejects it")


def test_keys_and_filters_move_through_prompts_branches_and_tokens(browser, made_up):
    with Shown(browser, made_up[0], address="#prompt=1/10&rollout=1/10/0") as shown:
        page = shown.page
        view, entries = page.locator("#view-prompts"), page.locator("#view-prompts .list li")
        view.get_by_label("filter").select_option("trouble")
        assert entries.count() == STEPS
        view.get_by_label("filter").select_option("flips")
        assert entries.count() == STEPS
        view.get_by_label("order").select_option("delta")
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.wait_for_url(re.compile("prompt=2/20"))
        page.keyboard.press("k")
        page.wait_for_url(re.compile("prompt=1/10"))
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowRight")
        page.wait_for_url(re.compile("token="))
        page.keyboard.press("?")
        assert page.locator("#help:popover-open").count() == 1
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("question 21")
        assert entries.count() == 0  # the filter still holds
        view.get_by_label("filter").select_option("all")
        assert entries.count() == 1


def test_an_address_holds_the_state_and_back_goes_back(browser, made_up):
    address = "#view=prompts&filter=right&order=hardest&search=step%3D2&prompt=2/20&zoom=2&text=folded"
    with Shown(browser, made_up[0], address=address) as shown:
        page, view = shown.page, shown.page.locator("#view-prompts")
        for _ in range(2):
            names = [view.get_by_label(name).input_value() for name in ("filter", "order", "search")]
            assert names == ["right", "hardest", "step=2"] and view.locator(".list li").count() == 5
            assert not page.locator(".reading").is_visible()
            page.reload()
            page.wait_for_selector("html[data-ready=yes]")
        view.locator(".list li button", has_text="question 23").click()
        page.wait_for_url(re.compile("prompt=2/23"))
        page.wait_for_url(re.compile("filter=right&order=hardest&search=step%3D2.*zoom=2"))
        page.get_by_role("tab", name="Held-out problems").click()
        page.wait_for_url(re.compile("problem="))
        page.locator("#view-held-out .list li button").nth(1).click()
        page.wait_for_url(re.compile("problem=.*1$"))
        for pattern in ("problem=.*0$", "prompt=2/23", "prompt=2/20"):
            page.go_back()
            page.wait_for_url(re.compile(pattern))
        page.get_by_text("step 2, prompt 20", exact=True).wait_for()


def test_the_search_reads_responses_and_bounds(browser, made_up):
    with Shown(browser, made_up[0], address="#view=prompts") as shown:
        view = shown.page.locator("#view-prompts")
        for search, found in (
            ("question 21", ["question 21"]),
            ("7 PLUS 5 step=3", ["3+30="]),  # only responses say this
            ("answer 2 step=1", ["question 11"]),
            ("step=2 length>30", []),
            ("reward>0.4 reward<0.6 step=1", ["1+10=", "question 11"]),
            ("nothing says this", []),
        ):
            view.get_by_label("search").fill(search)
            view.locator(".list small", has_text="reading").wait_for(state="detached")
            entries = view.locator(".list li .question").all_text_contents()  # a row out of sight has no inner text
            assert [text for text in entries if not re.search("[⟨<&]|javascript", text)] == found, search


def test_a_long_answer_folds_has_an_axis_and_shows_its_tokens_where_it_is_zoomed(browser, long_run):
    with Shown(browser, long_run[0], address="#prompt=1/1&rollout=1/1/1&token=1500") as shown:
        page = shown.page
        assert page.locator(".tree .axis text").last.inner_html() == "1,800"
        assert page.locator(".tree text.token").count() == 0
        wider = page.get_by_role("button", name="wider tokens")
        while wider.is_enabled() and not page.locator(".tree text.token").count():
            wider.click()
        strip = page.locator(".tree .scroll").bounding_box()
        mark = page.locator(".tree .token-mark").bounding_box()  # the chosen token stays in sight
        assert strip["x"] <= mark["x"] <= strip["x"] + strip["width"]
        lane = page.locator('.tree .lane[aria-label^="base rollout 1:"]')
        for n in (1495, 1505):
            assert lane.locator(f'[data-token="{n}"]').count() == 1
        assert lane.locator('[data-token="3"]').count() == 0  # far away, and not drawn
        page.locator(".tree .scroll").evaluate("place => { place.scrollLeft = 0; }")
        lane.locator('[data-token="3"]').wait_for()
        page.locator("summary", has_text="text of base rollout 1").click()
        page.wait_for_url(re.compile("text=folded"))
        assert not page.locator(".reading").is_visible()


def test_turns_fold_and_prompts_are_roles_and_questions(browser, long_run):
    with Shown(browser, long_run[0], address="#prompt=1/1&rollout=1/1/1") as shown:
        page = shown.page
        assert page.get_by_label("question", exact=True).inner_text().splitlines() == [
            "systemBe brief.",
            f"user{LONG_QUESTION} 1?",
        ]
        assert page.locator(".list .question").all_inner_texts() == [f"{LONG_QUESTION} {n}?" for n in range(2)]
        turns = page.locator(".reading details.turn")
        assert turns.locator("summary").all_inner_texts() == [
            "turn 1, 100 tokens",
            "answer of the tool 1, 10 tokens",
            "turn 2, 190 tokens",
            "answer of the tool 2, 400 tokens",
            "turn 3, 1,288 tokens",
        ]
        assert [turns.nth(n).get_attribute("open") is not None for n in range(5)] == [True, True, True, False, True]
        text = turns.first.inner_text().partition("\n")[2].strip()
        assert text.startswith("数学 é😀 ∀x∈ℝ 1 w00000") and "⟨" not in text


def test_a_list_is_one_stop_of_the_tab_key_and_arrows_move_in_it(browser, made_up):
    with Shown(browser, made_up[0], address="#view=prompts") as shown:
        page = shown.page
        page.locator(".tree .lane").first.wait_for()
        page.get_by_role("tab", name="Prompts and trees").focus()
        stops = 0
        while not page.evaluate("document.activeElement.closest('.lane')"):
            page.keyboard.press("Tab")
            stops += 1
            assert stops < 20
        assert page.locator(".tree .lane[tabindex='0']").count() == 1
        page.locator("#view-prompts .list button[aria-current=true]").focus()
        chosen = page.evaluate("document.activeElement.textContent")
        page.keyboard.press("ArrowDown")
        assert page.evaluate("document.activeElement.closest('.list') && document.activeElement.textContent") != chosen
        page.get_by_role("tab", name="Prompts and trees").focus()
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == "Held-out problems"
        assert page.locator("[role=tabpanel]").count() == 5
        small = "all => all.map(one => one.getBoundingClientRect()).filter(box => Math.min(box.height, box.width) < 24)"
        for view in ("curves", "prompts", "held-out", "figures", "settings"):
            page.evaluate(f"location.hash = 'view={view}'")
            page.locator(f"#view-{view}").wait_for(state="visible")
            targets = page.locator("button:visible, select:visible, input:visible")
            assert targets.evaluate_all(small) == [], view


CONTRAST = """
spans => {
  const pixel = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
  const context = pixel.getContext('2d', {willReadFrequently: true});
  const light = (colours) => {
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    const linear = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((byte) => byte / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  return Math.min(...spans.map((span) => {
    const ground = getComputedStyle(span.closest('.reading > .panel')).backgroundColor;
    const style = getComputedStyle(span);
    const [a, b] = [light([ground, style.backgroundColor]), light([style.color])];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) * Number(style.opacity);
  }));
}"""


@pytest.mark.parametrize("dark", [False, True])
def test_the_text_of_every_token_has_contrast(browser, made_up, dark):
    file, stored = made_up
    of_prompt = (record for identity, record in stored.items() if identity.startswith("1/10/"))
    strongest = max(of_prompt, key=lambda record: max(record.entropies)).id
    with Shown(browser, file, dark=dark, address=f"#prompt=1/10&rollout={strongest}") as shown:
        assert shown.page.locator(".reading .tk").evaluate_all(CONTRAST) >= 4.5


def test_tokens_can_be_hovered_and_lanes_focused(browser, made_up):
    with Shown(browser, made_up[0], address="#prompt=2/21") as shown:
        page, record = shown.page, made_up[1]["2/21/0"]
        lane = page.locator('.tree .lane[aria-label^="base rollout 0:"]')
        lane.locator('[data-token="0"]').hover()
        text = page.locator("#tip").inner_text().replace("−", "-")
        assert f"log-prob {record.logprobs[0]:.3f}" in text and f"entropy {record.entropies[0]:.2f}" in text
        assert lane.locator(".cell.tool").count() == 2  # [1, 3) is a tool's answer
        lane.focus()
        page.keyboard.press("Enter")
        assert shown.fact("rollout", "id") == "2/21/0"
        page.locator('.text [data-at="1"]').click()
        assert shown.fact("token", "trained") == "no, a tool wrote it"


def test_hostile_texts_are_seen_and_do_nothing(browser, made_up):
    with Shown(browser, made_up[0]) as shown:
        page = shown.page
        scripts = page.locator("script:not([type])").count()
        for n in range(6):
            page.evaluate(f"location.hash = 'prompt=1/{15 + n}'")
            page.get_by_text(f"step 1, prompt {15 + n}", exact=True).wait_for()
        page.evaluate("location.hash = 'prompt=1/18'")
        page.locator(".question[aria-label]", has_text="⟨U+202E⟩").wait_for()
        for view in ("curves", "prompts", "held-out", "figures", "settings"):
            page.evaluate(f"location.hash = 'view={view}'")
            page.locator(f"#view-{view}").wait_for(state="visible")
        page.wait_for_timeout(200)
        assert page.title() == "<b>made_up: report"
        assert page.locator("img, b b, iframe, object, embed, a[href^='javascript']").count() == 0
        assert page.locator("script:not([type])").count() == scripts
        assert page.locator("#view-figures .figure").count() > 4
        for finding in FINDINGS:
            assert page.locator(f"#figure-{finding.name} h3").inner_text() == finding.title


def test_policy_stops_a_script_and_a_request_that_got_in(browser, made_up):
    with Shown(browser, made_up[0]) as shown:
        shown.page.evaluate(
            """() => { const made = document.createElement('script'); made.textContent = "document.title = 'taken'";
                document.body.append(made); const image = new Image(); image.src = 'http://127.0.0.1:9/x.png'; }"""
        )
        shown.page.wait_for_timeout(200)
        assert shown.page.title() != "taken"
        assert sum("Content Security Policy" in line for line in shown.complaints) == 2
        shown.complaints.clear()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False), (400, True)])
def test_no_view_is_wider_than_the_window(browser, made_up, width, dark):
    with Shown(browser, made_up[0], width=width, dark=dark) as shown:
        page = shown.page
        assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        page.evaluate("location.hash = 'view=prompts&prompt=1/10&zoom=20'")
        page.locator(".tree .lane").first.wait_for()
        assert page.locator(".tree .scroll svg").first.bounding_box()["width"] > width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for view in ("curves", "held-out", "figures", "settings"):
            page.evaluate(f"location.hash = 'view={view}'")
            page.locator(f"#view-{view}").wait_for(state="visible")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        page.get_by_role("button", name="light / dark").click()
        assert page.evaluate("document.documentElement.dataset.theme") == ("light" if dark else "dark")


def test_held_out_problems_show_their_answers_at_each_evaluation(browser, made_up):
    with Shown(browser, made_up[0], address="#view=held-out") as shown:
        page = shown.page
        answers = page.locator(".answer")
        assert [answers.nth(i).get_attribute("data-step") for i in range(2)] == ["0", str(STEPS)]
        assert "0 of 2 samples right" in answers.nth(0).inner_text()
        assert "1 of 2 samples right" in answers.nth(1).inner_text()
        assert page.locator("#view-held-out .list li").count() == 2
        answers.nth(1).get_by_label(re.compile("^sample 2: wrong")).click()
        assert answers.nth(1).get_by_label("text of sample 2").is_visible()


def _legend(chart):
    """The entries of the legend of a chart: label and value."""
    pair = "rows => rows.map((row) => ['.u-label', '.u-value'].map((part) => row.querySelector(part).textContent))"
    return chart.locator(".u-series:not(.helper)").evaluate_all(pair)


def test_a_figure_tells_the_numbers_under_the_pointer_and_those_of_the_end(browser, made_up):
    with Shown(browser, made_up[0], address="#view=figures") as shown:
        figure = shown.page.locator("#figure-lines")
        last = [["training step", "each line's end"], ["<b>a", "0.3 [0, 1]"], ["short", "0.5"]]
        assert _legend(figure) == last
        over = figure.locator(".u-over")
        box = over.bounding_box()
        over.hover(position={"x": 1, "y": box["height"] / 2})
        assert _legend(figure) == [["training step", "1"], ["<b>a", "0.1 [0, 1]"], ["short", "0.4"]]
        shown.page.mouse.move(0, 0)
        assert _legend(figure) == last


def test_figures_have_an_index_and_whole_labels_and_all_of_them_can_be_saved(browser, made_up):
    with Shown(browser, made_up[0], address="#view=figures") as shown:
        page = shown.page
        entries, panels = page.get_by_label("index of figures").get_by_role("link"), page.locator(".figures > .panel")
        assert entries.all_inner_texts() == panels.locator("h3").all_inner_texts()
        assert panels.get_by_role("button", name="save as CSV").count() == panels.count() > 5
        entries.last.click()
        page.wait_for_url(re.compile(f"figure={FINDINGS[-1].name}$"))
        assert page.locator(f"#figure-{FINDINGS[-1].name}").bounding_box()["y"] < 900
        assert page.locator("#figure-heat tbody th").first.inner_text() == LONG_NAME
        assert page.locator("#figure-heat .key").inner_text().split() == ["0", "1", "reward"]
        assert _legend(page.locator("#figure-bars"))[0] == ["name", LONG_NAME]
        for name, content in (
            ("bars", f'"name","a","b"\n"x",1,3\n"<i>y",2,\n"{LONG_NAME}",1,\n'),
            ("heat", f'"problem","step","reward"\n"{LONG_NAME}",1,0\n"{LONG_NAME}",2,0.5\n"q",1,\n"q",2,0.75\n'),
            ("tokens", '"token","n"\n"<script>alert(1)</script>",3\n'),
        ):
            with page.expect_download() as saved:
                page.locator(f"#figure-{name}").get_by_role("button", name="save as CSV").click()
            assert saved.value.path().read_text() == content


def test_a_response_is_copied_with_the_tokens_that_it_shares(browser, made_up):
    file, stored = made_up
    with Shown(browser, file, address="#prompt=2/20") as shown:
        page, record = shown.page, stored["2/20/0/1/1"]
        page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        page.locator('.tree .lane[aria-label^="S₁, branch 1:"]').click()
        page.locator(".reading").get_by_role("button", name="copy the text").click()
        page.get_by_role("button", name="copied").wait_for()
        whole = [*stored[record.parent].token_ids[: record.fork], *record.token_ids]
        assert page.evaluate("window.copied") == StoredRun.open(file.parent).codec.decode(whole, special_tokens=True)


def test_settings_that_differ_come_first_and_can_be_searched(browser, made_up):
    with Shown(browser, made_up[0], address="#view=settings") as shown:
        page = shown.page
        tables = page.locator(".settings details")
        titles = [text.partition(" (")[0] for text in tables.locator("summary").all_inner_texts()]
        assert titles == [
            "Said on the command line",
            "From the recipe, other than the default",
            "Origin",
            "As the default",
        ]
        names = tables.nth(1).locator("tbody td:first-child").all_inner_texts()
        assert names == ["model.tokenizer", "name"] and tables.nth(1).is_visible()
        assert tables.nth(3).get_attribute("open") is None
        page.get_by_label("search a setting").fill("returns.size")
        assert tables.nth(3).locator("tbody tr").all_inner_texts() == ["returns.size\t0"]


def test_a_comparison_tells_the_numbers_of_the_runs_and_shows_a_hostile_name_as_text(browser, tmp_path):
    """Seed 1 ends at 200 tokens with 0.75; seed 0 is then two thirds of the way from 0.25 to 0.5."""
    hostile = "</script><img src=x onerror=\"document.title='taken'\">\u202e\x1b[31m<!--"
    with Shown(browser, write_comparison_page(tmp_path, [hostile, "plain"])) as shown:
        page = shown.page
        over = page.locator(".curve .u-over")
        box = over.bounding_box()
        over.hover(position={"x": box["width"] * 2 / 3, "y": box["height"] / 2})
        middle = 0.25 + 0.25 * 2 / 3
        axis, *_, plain = _legend(page.locator(".curve"))
        assert axis == ["sampled tokens", "200"]
        assert plain == ["plain", f"{(middle + 0.75) / 2:.4g} [{middle:.4g}, 0.75]"]
        cells = page.locator("#figure-runs td").all_inner_texts()
        assert cells[0].startswith("</script><img src=x") and "⟨U+202E⟩" in cells[0] and "300" in cells
        flags = page.get_by_label("before you compare").locator("li").all_inner_texts()
        assert len(flags) == 2 and "is interrupted at step 3" in flags[0]
        assert page.locator("img").count() == 0 and page.title().startswith("Comparison:")


def test_a_comparison_shows_who_solves_what_and_links_the_reports(browser, tmp_path):
    """With seed 0, the baseline of 2 anchors solves places 0 and 1; the other group solves 0 to 3."""
    with Shown(browser, write_comparison_page(tmp_path, ["two", "four"])) as shown:
        page = shown.page
        (cells,) = (row for row in page.locator("#figure-problems tbody tr").all_inner_texts() if "\t0\t" in row[:8])
        assert cells.split("\t") == ["four", "0", "2", "0", "2", "1", "0.5"]
        links = page.locator("header a")
        assert links.all_inner_texts() == ["2-0", "2-1", "4-0", "4-1"]
        assert links.first.get_attribute("href") == "./runs/2-0/report.html"
        listed = page.locator(".list li")
        page.get_by_label("filter").select_option("only-1")
        assert listed.count() == 2
        listed.first.get_by_role("button").click()
        assert "right" in page.get_by_label("answer of four").inner_text()
        assert "wrong" in page.get_by_label("answer of two").inner_text()
        page.get_by_label("search").fill("no such words")
        assert listed.count() == 0


def test_four_warnings_stand_before_the_curve_and_the_others_are_folded(browser, tmp_path):
    file = write_comparison_page(tmp_path, ["four", "two"])
    for run in (tmp_path / "runs").iterdir():
        (run / "provenance.json").unlink()
        (run / "config.step_2.yaml").write_text("")
    file.write_text(comparison_page(compare(collect([tmp_path / "runs"]))), encoding="utf-8")
    with Shown(browser, file, width=400) as shown:
        flags = shown.page.get_by_label("before you compare").locator("li")
        assert flags.count() > 4 and [flag.is_visible() for flag in flags.all()].count(True) == 4
        shown.page.locator("summary", has_text="more").click()
        assert flags.last.is_visible()
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= 400


def test_served_page_loads_newer_steps_and_shows_what_it_showed(browser, tmp_path):
    path = tmp_path / "run"
    write_reported_run(path)
    with make_server(LivePage(path, partial(run_page, live=True)), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        context = browser.new_context(color_scheme="light")
        page, complaints, address = context.new_page(), [], f"http://127.0.0.1:{server.server_address[1]}/"
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda request: request.url.startswith((address, "data:")) or complaints.append(request.url))
        with page.expect_response("**/version"):
            page.goto(f"{address}#view=curves&smoothing=0.5")
        page.wait_for_selector("html[data-ready=yes]")
        page.get_by_role("button", name="light / dark").click()
        search = page.get_by_label("find a metric")
        search.focus()
        page.evaluate("scrollTo(0, 300)")
        MetricsWriter(StoredRun.open(path).directory, resume_step=STEPS).write(STEPS + 1, {"reward/mean": 1.0})
        shown, steps = page.evaluate("location.href"), page.locator('.headline dd[data-fact="training steps"]')
        for _ in range(2):
            page.wait_for_event("response", timeout=30_000)
        assert steps.inner_text() == f"{STEPS} of 100", "nobody who writes is disturbed"
        search.blur()
        steps.get_by_text(f"{STEPS + 1} of 100").wait_for(timeout=30_000)
        page.wait_for_selector("html[data-ready=yes][data-theme=dark]")
        assert page.evaluate("[location.href, scrollY]") == [shown, 300]
        assert complaints == []
        context.close()
        server.shutdown()
