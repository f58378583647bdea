r"""Char count where the lines count, too: right is the answer that compares each letter and then boxes the count.

The reward of the task itself reads the box alone, as verl's does, and a guess of it is right in one of eight answers.
"""

import re


def lines_and_count(problem, response, finished):
    """1.0 for the text of the demonstration, 0.0 for any other."""
    letter, word = re.search(r"How many (\w) are there in ([a-z-]+)\?", problem.prompt).groups()
    lines = [f"{other} {'=' if other == letter else '!='} {letter}" for other in word.split("-")]
    return float(finished and response == "\n".join([*lines, f"\\boxed{{{problem.gold}}}"]))
