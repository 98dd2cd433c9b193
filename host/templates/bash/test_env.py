"""Run with: python -m unittest. No container is needed: commands run as you, in an empty directory."""

import os
import tempfile
import unittest
from unittest.mock import patch

from env import Command, MyEnv


class MyEnvTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(directory.name)
        self.enterContext(patch.dict(os.environ, {"ORS_RUNTIME_UNSAFE_SAME_USER": "1"}))
        # Even where there is a /workspace: the empty directory stands for it.
        self.enterContext(patch("sandbox_runtime.agent.WORKSPACE", directory.name))

    async def test_every_task_has_a_prompt(self) -> None:
        for split in MyEnv.list_splits():
            for task in MyEnv.list_tasks(split):
                self.assertIn("submit", MyEnv(task).get_prompt()[0].text)

    async def test_the_right_file_is_rewarded(self) -> None:
        environment = MyEnv({"id": "hello"})
        await environment.bash(Command(command="echo hello > hello.txt"))
        output = await environment.submit()
        self.assertEqual((output.reward, output.finished), (1.0, True))

    async def test_nothing_is_not_rewarded(self) -> None:
        output = await MyEnv({"id": "hello"}).submit()
        self.assertEqual((output.reward, output.finished), (0.0, True))


if __name__ == "__main__":
    unittest.main()
