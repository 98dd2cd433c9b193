"""The problems: what is asked, the hidden arguments, and a reference solution that says what is right.

Arguments and results are JSON values, as they travel to the submitted code and back as JSON.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Args = list[Any]


@dataclass(frozen=True)
class Problem:
    """One function to write. ``examples`` are shown with their results, ``hidden`` are not."""

    function: str
    signature: str
    statement: str
    examples: list[Args]
    hidden: list[Args]
    reference: Callable[..., Any]

    def expected(self, args: Args) -> Any:
        """Return the right result for ``args``, as JSON gives it back."""
        private = json.loads(json.dumps(args))  # a reference may change its arguments
        return json.loads(json.dumps(self.reference(*private)))


def _to_roman(number: int) -> str:
    symbols = ["M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"]
    values = [1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1]
    text = ""
    for symbol, value in zip(symbols, values, strict=True):
        text += symbol * (number // value)
        number %= value
    return text


def _merge_intervals(intervals: list[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def _count_pairs(numbers: list[int], target: int) -> int:
    seen: Counter[int] = Counter()
    pairs = 0
    for number in numbers:
        pairs += seen[target - number]
        seen[number] += 1
    return pairs


def _column_name(index: int) -> str:
    name = ""
    while index:
        index, letter = divmod(index - 1, 26)
        name = chr(ord("A") + letter) + name
    return name


def _is_balanced(text: str) -> bool:
    closes = {")": "(", "]": "[", "}": "{"}
    stack: list[str] = []
    for char in text:
        if char in closes.values():
            stack.append(char)
        elif char in closes and (not stack or stack.pop() != closes[char]):
            return False
    return not stack


def _common_words(text: str, k: int) -> list[str]:
    counts = Counter("".join(char.lower() if char.isalpha() else " " for char in text).split())
    return heapq.nsmallest(k, counts, key=lambda word: (-counts[word], word))


def _fewest_steps(grid: list[str]) -> int:
    goal = (len(grid) - 1, len(grid[0]) - 1)
    queue, seen = deque([(0, 0, 0)]), {(0, 0)}
    while queue:
        row, column, steps = queue.popleft()
        if (row, column) == goal:
            return steps
        for r, c in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if 0 <= r <= goal[0] and 0 <= c <= goal[1] and grid[r][c] == "." and (r, c) not in seen:
                seen.add((r, c))
                queue.append((r, c, steps + 1))
    return -1


PROBLEMS: dict[str, dict[str, Problem]] = {
    "train": {
        "train-0": Problem(
            "to_roman",
            "to_roman(number: int) -> str",
            "Return a number from 1 to 3999 in Roman numerals.",
            [[9], [2024]],
            [[1], [4], [14], [40], [90], [399], [444], [1994], [3888], [3999]],
            _to_roman,
        ),
        "train-1": Problem(
            "merge_intervals",
            "merge_intervals(intervals: list[list[int]]) -> list[list[int]]",
            "Merge the intervals [start, end] that overlap or touch, and return them sorted by start.",
            [[[[5, 8], [1, 3], [2, 4]]], [[[1, 2], [2, 3]]]],
            [[[]], [[[1, 9], [2, 3]]], [[[4, 4], [4, 4]]], [[[-5, -1], [-3, 2], [7, 8]]], [[[i, i] for i in range(9)]]],
            _merge_intervals,
        ),
        "train-2": Problem(
            "count_pairs",
            "count_pairs(numbers: list[int], target: int) -> int",
            "Return how many pairs of positions i < j there are with numbers[i] + numbers[j] == target. "
            "There can be tens of thousands of numbers.",
            [[[1, 5, 3, 3], 6], [[2, 2, 2], 4]],
            [[[], 3], [[4], 8], [[-1, 1, 0, 0], 0], [[7] * 50, 14], [[i * i % 10_007 for i in range(40_000)], 9_999]],
            _count_pairs,
        ),
        "train-3": Problem(
            "column_name",
            "column_name(index: int) -> str",
            "Return the name of a spreadsheet's column: 1 is A, 26 is Z, 27 is AA and so on.",
            [[3], [28]],
            [[1], [26], [27], [52], [53], [701], [702], [703], [16_384], [1_000_000]],
            _column_name,
        ),
    },
    "test": {
        "test-0": Problem(
            "is_balanced",
            "is_balanced(text: str) -> bool",
            "Tell whether the brackets (), [] and {} in a text are balanced and properly nested. Other characters don't "
            "matter.",
            [["f(x[1])"], ["(]"]],
            [[""], ["("], [")("], ["([{}])"], ["([)]"], ["a}b{c"], ["(" * 5_000 + ")" * 5_000]],
            _is_balanced,
        ),
        "test-1": Problem(
            "common_words",
            "common_words(text: str, k: int) -> list[str]",
            "Return the k most common words in lower case, the most common first and equally common ones in alphabetical "
            "order. A word is a run of letters. Return all words if there are fewer than k.",
            [["The cat saw the dog. The dog ran!", 2]],
            [["", 3], ["b a", 5], ["One two, TWO three... three; THREE", 2], ["x1x y2y-y", 2], ["no No nO on", 1]],
            _common_words,
        ),
        "test-2": Problem(
            "fewest_steps",
            "fewest_steps(grid: list[str]) -> int",
            "The grid's rows are strings of '.' (free) and '#' (wall). Return the fewest steps (up, down, left, right) from "
            "the top left to the bottom right cell, both of which are free, or -1 if there is no way.",
            [[["..", "#."]], [[".#", "#."]]],
            [[["."]], [["...", ".#.", "..."]], [["..#", "#..", "##."]], [[".#.", ".#.", ".#."]], [["." * 60] * 60]],
            _fewest_steps,
        ),
    },
}
