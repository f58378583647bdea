"""Whether an answer in LaTeX or plain text is the gold answer; see docs/users/grading.md for the conventions."""
