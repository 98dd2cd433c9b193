"""Run with: python -m unittest. No container is needed."""

import unittest

from env import Answer, MyEnv


class MyEnvTest(unittest.TestCase):
    def test_every_task_has_a_prompt(self) -> None:
        for split in MyEnv.list_splits():
            for task in MyEnv.list_tasks(split):
                self.assertIn("answer", MyEnv(task).get_prompt()[0].text)

    def test_the_right_answer_is_rewarded(self) -> None:
        for text, reward in (("42", 1.0), (" 42 ", 1.0), ("41", 0.0)):
            output = MyEnv({"split": "train", "number": 0}).answer(Answer(text=text))
            self.assertEqual((output.reward, output.finished), (reward, True))


if __name__ == "__main__":
    unittest.main()
