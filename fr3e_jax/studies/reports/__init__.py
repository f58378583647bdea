"""Pages to look at: one self-contained HTML file for a run or for a comparison of runs."""
