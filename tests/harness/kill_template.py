"""A warm process that forks a child for each line of orders, so that a cycle costs no start-up.

Run as a program. Child and template write to the same pipe; the template's line that a child has
ended comes after everything that the child said.
"""

import json
import os
import sys

from tests.harness.kill_work import Orders, live, tell


def main() -> None:
    for line in sys.stdin:
        orders = Orders(**json.loads(line))
        child = os.fork()
        if child == 0:
            live(orders)
        while True:
            _, status = os.waitpid(child, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                break
            tell("stopped")
        tell(f"ended {status}")


if __name__ == "__main__":
    main()
