"""Stored runs, read and analysed on the host: the papers' analyses as pure functions of rollouts and metrics.

Nothing here compiles or needs a device. Open `stored_run.py` first: all analyses read a run through it. The result of
an analysis is a figure (`figure.py`), which the report draws and `fr3e analyse` writes as JSON and CSV.
"""
