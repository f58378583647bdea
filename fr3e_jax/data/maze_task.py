"""The embedded task *Maze*: walk through a perfect maze, one move a token, as in MaxRL (Tajwar et al. 2026).

A maze of side 7 has 3 x 3 cells between its walls ``%``; ``(`` is the start and ``)`` the goal. Moves lie as on a
number pad: ``8`` up, ``2`` down, ``4`` left, ``6`` right, one square each. This one has the path ``22666622``::

    %%%%%%%
    %(%...%
    %.%.%.%
    %.....%
    %%%.%.%
    %...%)%
    %%%%%%%

Prim's algorithm carves the mazes, with start and goal in opposite corners, as MaxRL's generator does. A maze has one
path that steps on no square twice. A hash of its text gives its split, so held-out mazes are never trained on.
"""

from __future__ import annotations

import numpy as np

from fr3e_jax.data.procedural import ProceduralTask
from fr3e_jax.data.task import Demonstration
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import Verifier

WALL, WAY, START, GOAL = "%.()"
MOVES = {"8": (-1, 0), "2": (1, 0), "4": (0, -1), "6": (0, 1)}
Square = tuple[int, int]  # row and column
_START: Square = (1, 1)


class MazeTask(ProceduralTask):
    """*Maze* with the settings ``data.maze``; see ``fr3e_jax.data.task.Task``."""

    name = section = "maze"
    person = b"maze test split"

    def sample(self, rng: np.random.Generator, **options: int) -> tuple[str, str]:
        maze = draw_maze(rng, self.config.side)
        return maze, shortest_path(maze)

    def demonstrated(self, rng: np.random.Generator, step_fraction: float) -> Demonstration:
        """The shortest path of a training maze."""
        return Demonstration(*self.draw(rng, "train"))

    def verifier(self) -> Verifier:
        return reaches_goal


def reaches_goal(problem: Problem, response: str, finished: bool) -> float:
    """1 if the response is a walk from the start that ends on the goal, else 0.

    Every character is a move, none leads into a wall, and the stop token follows the last one. Detours are right, as
    MaxRL counts them; a walk that goes on from the goal must come back.
    """
    rows = problem.prompt.split("\n")
    row, column = _START
    for move in response:
        if move not in MOVES:
            return 0.0
        row, column = row + MOVES[move][0], column + MOVES[move][1]
        if rows[row][column] == WALL:
            return 0.0
    return float(finished and rows[row][column] == GOAL)


def draw_maze(rng: np.random.Generator, side: int) -> str:
    """A random maze of ``side`` rows, each ended by a line end: cells join the maze in random order (Prim 1957)."""
    squares = np.full((side, side), WALL)
    squares[_START] = WAY
    frontier = _cells_beside(_START, side)
    while frontier:
        cell = frontier.pop(int(rng.integers(len(frontier))))
        beside = _cells_beside(cell, side)
        joined = [other for other in beside if squares[other] == WAY]
        other = joined[int(rng.integers(len(joined)))]
        squares[cell] = squares[(cell[0] + other[0]) // 2, (cell[1] + other[1]) // 2] = WAY
        frontier += [other for other in beside if squares[other] == WALL and other not in frontier]
    squares[_START], squares[side - 2, side - 2] = START, GOAL
    return "".join("".join(row) + "\n" for row in squares)


def _cells_beside(cell: Square, side: int) -> list[Square]:
    neighbours = [(cell[0] + 2 * down, cell[1] + 2 * right) for down, right in MOVES.values()]
    return [(row, column) for row, column in neighbours if 0 < row < side and 0 < column < side]


def shortest_path(maze: str) -> str:
    """The moves from start to goal without a detour; a perfect maze has no cycle, so any search finds them."""
    rows = maze.split("\n")
    walks = [(_START, "")]
    while True:
        (row, column), moves = walks.pop()
        if rows[row][column] == GOAL:
            return moves
        for move, (down, right) in MOVES.items():
            turns_back = moves[-1:] + move in ("82", "28", "46", "64")
            if rows[row + down][column + right] != WALL and not turns_back:
                walks.append(((row + down, column + right), moves + move))
