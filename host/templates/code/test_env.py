"""Run with: python -m unittest. No container is needed: the code runs as you."""

import os
import unittest
from unittest.mock import patch

from env import Code, MyEnv


class MyEnvTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.enterContext(patch.dict(os.environ, {"ORS_RUNTIME_UNSAFE_SAME_USER": "1"}))

    async def test_every_task_has_a_prompt(self) -> None:
        for split in MyEnv.list_splits():
            for task in MyEnv.list_tasks(split):
                self.assertIn(task["function"], MyEnv(task).get_prompt()[0].text)

    async def test_the_right_function_is_rewarded(self) -> None:
        for code, reward in (
            ("def double(n): return 2 * n", 1.0),
            ("def double(n): return n", 0.0),
            ("print(4)", 0.0),  # what it prints is not what it returns
            ("import os; os._exit(0)", 0.0),
        ):
            output = await MyEnv({"function": "double"}).submit(Code(code=code))
            self.assertEqual((output.reward, output.finished), (reward, True), code)


if __name__ == "__main__":
    unittest.main()
