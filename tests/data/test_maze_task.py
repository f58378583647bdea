"""*Maze* has perfect mazes, shortest demonstrations, and a reward for walks to the goal alone."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.configuration.task_sections import MazeConfig
from fr3e_jax.data.character_tokenizer import CHARACTERS
from fr3e_jax.data.maze_task import MazeTask, reaches_goal, shortest_path
from fr3e_jax.problem import Problem

MAZE = """\
%%%%%%%
%(%...%
%.%.%.%
%.....%
%%%.%.%
%...%)%
%%%%%%%
"""


def make(seed=0, side=9):
    return MazeTask(DataConfig(task="maze", seed=seed, maze=MazeConfig(side=side)))


def reward(response, finished=True):
    return reaches_goal(Problem("0", MAZE, "22666622"), response, finished)


@pytest.mark.parametrize("side", [7, 9, 17])
def test_mazes_are_perfect_and_demonstrations_the_shortest_paths(side):
    task = make(side=side)
    demonstrations = [task.demonstration(index, 1.0) for index in range(60)]
    for maze in [demonstration.prompt for demonstration in demonstrations]:
        rows = maze.split("\n")
        ways = {(r, c) for r in range(side) for c in range(side) if rows[r][c] != "%"}
        edges = sum((r + 1, c) in ways for r, c in ways) + sum((r, c + 1) in ways for r, c in ways)
        reached = [(1, 1)]
        for r, c in reached:
            beside = ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1))
            reached += [square for square in beside if square in ways and square not in reached]
        assert set(reached) == ways and edges == len(ways) - 1, "a tree: connected, and without a cycle"
        assert len(ways) == 2 * (side // 2) ** 2 - 1 and maze.count("(") == maze.count(")") == 1
        assert set(maze) <= set(CHARACTERS)
    for demonstration in demonstrations:
        problem = Problem("0", demonstration.prompt, "")
        assert task.verifier()(problem, demonstration.response, True) == 1
        assert demonstration.response == shortest_path(demonstration.prompt)
        squares = walked(demonstration.response)
        assert len(set(squares)) == len(squares), "no square twice, so no path is shorter"


def walked(path):
    squares = [(1, 1)]
    for move in path:
        down, right = {"8": (-1, 0), "2": (1, 0), "4": (0, -1), "6": (0, 1)}[move]
        squares.append((squares[-1][0] + down, squares[-1][1] + right))
    return squares


def test_the_shortest_path_and_detours_that_end_on_the_goal_are_right():
    assert shortest_path(MAZE) == "22666622"
    for response in ("22666622", "2282666622", "22" + "64" * 20 + "666622", "22668822" + "6622", "2266662282"):
        assert reward(response) == 1, response


@pytest.mark.parametrize(
    "response",
    [
        "",  # nothing
        "2266662",  # one move short
        "226666222",  # on into the wall
        "2266662284466",  # on from the goal, and not back to it
        "6666",  # through the wall at once
        "66662222",  # as long as the path, through walls
        "226622",  # down the dead end
        "8888",  # off the board, upwards
        "4" * 50,  # off the board, to where a negative index would wrap around
        "2" * 50,
        "6" * 1000,
        "28" * 100,  # loops that go nowhere
        "2266662266",  # through the goal's own wall
        "22666622.",  # text after the path
        "22666622 done",
        "22666622\n",
        " 22666622",
        "2 2 6 6 6 6 2 2",
        "2,2,6,6,6,6,2,2",
        "22666622)",
        "\\boxed{22666622}",
        "DDRRRRDD",
        "↓↓→→→→↓↓",
        "２２６６６６２２",  # digits of full width
        "٢٢٦٦٦٦٢٢",  # Arabic-Indic digits, which int() reads
        "²²⁶⁶⁶⁶²²",
        "22666622\u200b",
        "22666622\x00",
        "5" + "22666622",  # a key without a move
        "-22666622",
        MAZE + "22666622",  # the prompt again
        MAZE.replace("%", "."),  # walls torn down in the response
    ],
)
def test_what_is_no_walk_to_the_goal_is_wrong(response):
    assert reward(response) == 0


def test_a_path_without_the_stop_token_is_wrong():
    assert reward("22666622", finished=False) == 0
