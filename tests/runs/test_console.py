from __future__ import annotations

import importlib.util
import io
import sys
import threading
from types import SimpleNamespace

import pytest
import rich.console

from fr3e_jax.runs.console import FILES, Console
from fr3e_jax.runs.run_directory import RunDirectory


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


METRICS = {
    "reward/mean": 0.41234, "entropy/mean": 0.2, "length/mean": 23.44, "prompts/kept": 12, "prompts/rejected": 20,
    "speed/sampled_tokens_per_second": 1234.5, "tokens/sampled_tokens": 1000,
}  # fmt: skip


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_plain_prints_one_line_per_step_with_numbers_and_time_left():
    stream, clock = io.StringIO(), Clock()
    with Console("plain", max_steps=10, stream=stream, clock=clock) as console:
        console.stage("first return")
        clock.now = 30.0
        console.step(2, METRICS)
        console.note("checkpoint saved")
    assert lines_of(stream) == [
        "step 2/10  reward 0.412  entropy 0.200  length 23.4  kept 12  rejected 20  tokens/s 1234  left 0:02:00",
        "checkpoint saved",
    ]


def test_a_step_that_sampled_nothing_says_what_it_trained_on():
    stream = io.StringIO()
    with Console("plain", stream=stream) as console:
        console.step(4, {"tokens/sampled_tokens": 0, "batch/carried_rollouts": 128, "prompts/kept": 0})
    assert lines_of(stream) == ["step 4  trained on 128 carried rollouts, sampled nothing  left -"]


def test_a_step_that_only_returned_says_how_many_successes_it_continued():
    stream = io.StringIO()
    returned = {"returns/visits": 8, "returns/reward": 0.4, "returns/length": 21.5, "returns/depth": 0.25}
    with Console("plain", stream=stream) as console:
        console.step(4, returned | {"prompts/kept": 0, "prompts/rejected": 0, "tokens/sampled_tokens": 900})
        console.step(5, METRICS | returned)
    numbers = "reward 0.400  length 21.5  depth 0.25  tokens/s -"
    assert lines_of(stream)[0] == f"step 4  continued 8 kept successes  {numbers}  left -"
    assert lines_of(stream)[1].startswith("step 5  reward 0.412")


def test_a_step_of_fine_tuning_shows_its_loss_and_nothing_that_was_not_sampled():
    stream = io.StringIO()
    figures = {"loss/supervised": 0.13702, "entropy/mean": 0.19, "gradient_norm/mean": 1.8221}
    figures |= {"tokens/sampled_tokens": 0}
    with Console("plain", max_steps=160, stream=stream) as console:
        console.step(16, figures)
    (line,) = lines_of(stream)
    assert line.startswith("step 16/160  loss 0.1370  entropy 0.190  gradient norm 1.82  left ")


def test_a_long_stage_has_a_line_after_five_seconds_and_then_every_thirty():
    stream, clock, programs = io.StringIO(), Clock(), [3]
    console = Console(
        "plain", stream=stream, clock=clock, compiled=lambda: SimpleNamespace(programs=programs[0], seconds=0.0)
    )
    console.stage("evaluating the start")
    seen = []
    for second in range(1, 71):
        clock.now = float(second)
        programs[0] = 3 + min(second, 4)
        console.progress(*(10 * second, 1000) if second > 20 else (0, 0))
        console.tell()
        if len(lines_of(stream)) > len(seen):
            seen.append((second, lines_of(stream)[-1]))
    assert seen == [
        (5, "evaluating the start: 4 programs compiled or fetched, 5 s so far"),
        (
            35,
            "evaluating the start: 350 of 1,000 responses, 4 programs compiled or fetched, left 0:01:05, 35 s so far",
        ),
        (
            65,
            "evaluating the start: 650 of 1,000 responses, 4 programs compiled or fetched, left 0:00:35, 65 s so far",
        ),
    ]


def test_quick_stages_and_steps_print_no_line_between_them():
    stream, clock = io.StringIO(), Clock()
    console = Console("plain", stream=stream, clock=clock)
    for step in range(1, 12):
        for stage in ("first return", "explore", "updating"):
            console.stage(stage)
            clock.now += 4.0
            console.tell()
        console.step(step, METRICS)
    assert [line.split()[0] for line in lines_of(stream)] == ["step"] * 11


def test_the_display_of_a_log_file_looks_by_itself_and_ends_with_the_run(monkeypatch):
    monkeypatch.setattr("fr3e_jax.runs.console.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("fr3e_jax.runs.console.WATCH_SECONDS", 0.001)
    written = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

    with Console("plain", stream=Stream()) as console:
        console.stage("compiling")
        assert written.wait(60)
    assert not any(thread.name == "fr3e-console" for thread in threading.enumerate())


def test_missing_and_odd_metrics_become_a_dash():
    stream = io.StringIO()
    with Console("plain", stream=stream) as console:
        console.step(1, {"reward/mean": None, "entropy/mean": "high", "length/mean": [1.0]})
    assert lines_of(stream) == ["step 1  reward -  entropy -  length -  kept -  rejected -  tokens/s -  left -"]


@pytest.mark.parametrize(
    ("max_steps", "max_sampled_tokens", "left"),
    [(100, 0, "0:16:20"), (0, 5000, "0:00:30"), (100, 5000, "0:00:30"), (3, 5000, "0:00:10"), (0, 0, "-")],
)
def test_time_left_is_to_the_nearest_limit(max_steps, max_sampled_tokens, left):
    stream, clock = io.StringIO(), Clock()
    console = Console("plain", max_steps=max_steps, max_sampled_tokens=max_sampled_tokens, stream=stream, clock=clock)
    for step in (1, 2):
        clock.now += 10.0
        console.step(step, METRICS)
    assert lines_of(stream)[-1].endswith(f"left {left}")


def test_time_left_does_not_count_the_first_step_which_compiles():
    stream, clock = io.StringIO(), Clock()
    console = Console("plain", max_steps=12, stream=stream, clock=clock)
    for step, seconds in ((1, 100.0), (2, 1.0), (3, 3.0)):
        clock.now += seconds
        console.step(step, METRICS)
    assert [line.split("left ")[1] for line in lines_of(stream)] == ["0:18:20", "0:00:10", "0:00:18"]


def test_the_first_time_left_counts_neither_the_first_evaluation_nor_compilation():
    stream, clock, compiled = io.StringIO(), Clock(), SimpleNamespace(programs=0, seconds=0.0)
    console = Console("plain", max_steps=11, stream=stream, clock=clock, compiled=lambda: compiled)
    console.stage("evaluating the start")
    clock.now, compiled.seconds = 500.0, 90.0
    console.stage("first return")
    clock.now, compiled.seconds = 600.0, 184.0
    console.step(1, METRICS)
    assert lines_of(stream)[-1].endswith("left 0:01:00")  # 10 steps of 100 - 94 seconds


def test_time_left_of_a_resumed_run_counts_its_own_pace_only():
    stream, clock = io.StringIO(), Clock()
    console = Console("plain", max_steps=100, first_step=90, sampled_tokens=10**6, stream=stream, clock=clock)
    clock.now = 20.0
    console.step(92, METRICS)
    assert lines_of(stream)[-1].endswith("left 0:01:20")


def test_auto_is_plain_in_a_pipe_and_live_on_a_terminal():
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        with Console("auto", max_steps=4, stream=stream) as console:
            console.stage("explore [wrong]")
            console.step(3, METRICS)
            console.note("stopping [after] this step")
    assert "\x1b" not in pipe.getvalue()
    shown = terminal.getvalue()
    assert "\x1b[" in shown
    for text in ("step 3/4", "explore [wrong]", "reward 0.412", "stopping [after] this step"):
        assert text in shown


def test_none_prints_nothing(tmp_path):
    stream = io.StringIO()
    with Console("none", stream=stream) as console:
        console.stage("explore")
        console.step(1, METRICS)
        console.note("hello")
        console.summary({}, {"greedy": 0.5}, RunDirectory(tmp_path))
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("failure", "said"), [(BrokenPipeError(), ""), (OSError(28, "No space left on device"), "No space left on device;")]
)
def test_a_closed_pipe_or_full_disk_ends_the_display_and_not_the_run(capsys, failure, said):
    class ClosedPipe(io.StringIO):
        tried = 0

        def write(self, text: str) -> int:
            self.tried += 1
            raise failure

    pipe = ClosedPipe()
    with Console("plain", stream=pipe) as console:
        console.step(1, METRICS)
        console.note("still training")
    assert pipe.tried == 1 and said in capsys.readouterr().err


def test_summary_is_a_table_in_percent_and_names_the_existing_files(tmp_path):
    run_dir = RunDirectory(tmp_path)
    run_dir.metrics.write_text("")
    run_dir.tensorboard.mkdir()
    stream = io.StringIO()
    after = {"avg@16": 0.3541, "pass@8": 0.82, "greedy": 0.4, "length/mean": 21.5, "prompts": 256, "no_answer": 0}
    after["not_graded"] = 3
    Console("plain", stream=stream).summary({"avg@16": 0.231, "greedy": 0.5, "length/mean": 20.0}, after, run_dir)
    table, files = lines_of(stream)[:5], lines_of(stream)[5:]
    assert [line.split() for line in table] == [
        ["held-out", "before", "after", "change"],
        ["avg@16", "23.1%", "35.4%", "+12.3"],
        ["pass@8", "-", "82.0%", "-"],
        ["greedy", "50.0%", "40.0%", "-10.0"],
        ["not_graded", "-", "3.000", "-"],
    ]
    assert files[0] == f"run directory: {tmp_path}"
    assert [line.split()[0] for line in files[1:]] == ["metrics.jsonl", "tensorboard/"]
    there = importlib.util.find_spec("tensorboard") is not None
    viewer = f"as curves: tensorboard --logdir {tmp_path}/tensorboard" if there else "the same metrics as curves"
    assert files[-1].endswith(viewer)
    assert all(len(f"{name}/".ljust(17) + text) <= 80 for name, text in FILES[:3])
    assert len({len(line) for line in table}) == 1, "columns are not aligned"


@pytest.mark.parametrize("name", ["avg", "aime24/avg@32", "gsm8k/greedy", "aime25/test/pass@256"])
def test_shares_of_single_sets_and_their_mean_are_in_percent(name, tmp_path):
    stream = io.StringIO()
    Console("plain", stream=stream).summary({name: 0.231}, {name: 0.3541}, RunDirectory(tmp_path))
    assert stream.getvalue().splitlines()[1].split() == [name, "23.1%", "35.4%", "+12.3"]


@pytest.mark.parametrize("mode", ["live", "plain"])
def test_notes_and_stages_show_escapes_and_markup(mode):
    stream = Terminal()
    with Console(mode, max_steps=10, stream=stream) as console:
        console.stage("\x1b]0;stage\x07 [/x]")
        console.note("\x1b[2J [/data] \u202ereward")
        console.step(1, {"reward/mean": 1.0})
    shown = stream.getvalue()
    assert r"\u001b[2J [/data] \u202ereward" in shown
    assert "\x1b[2J" not in shown and "\x1b]0;" not in shown and "\u202e" not in shown


def test_prints_during_the_live_display_show_escapes(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    with Console("live", stream=stream):
        print("\x1b[31mred\u202e", file=sys.stderr)
    assert r"\u001b[31mred\u202e" in stream.getvalue()
    assert sys.stderr is stream


def test_live_display_is_three_lines_at_80_columns_and_each_step_stays(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with Console("live", max_steps=71, stream=stream) as console:
        console.stage("first return: sampling and grading the base rollouts of the prompts of this step")
        console.progress(96, 4352)
        console.step(7, METRICS | {"prompts/rejected": 1000})
        page = rich.console.Console(width=80, file=io.StringIO(), color_system=None)
        page.print(console._render())
        shown = page.file.getvalue().splitlines()
        assert len(shown) == 3 and "step 7/71" in shown[0] and "left" in shown[0]
        assert shown[1].startswith("first return") and shown[2].startswith("reward 0.412  entropy 0.200")
    (line,) = [line for line in stream.getvalue().splitlines() if "step 7/71  reward 0.412" in line]
    assert line.rstrip().endswith("rejected 1000"), "a step takes one line of 80 columns"
