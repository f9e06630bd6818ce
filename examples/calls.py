"""Call functions and objects of workers by name, with many calls at once on several workers.

python examples/calls.py [--numbers 1000] [--workers 4]
"""

import argparse

from miniray import Worker, as_completed


def square(x):
    return x * x


class Total:
    def __init__(self, start):
        self.total = start

    def add(self, number):
        self.total += number
        return self.total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()

    # 1. Start workers, and register the function that they will call
    workers = [Worker() for _ in range(options.workers)]
    for worker in workers:
        worker.register(square)

    # 2. Start all calls before waiting for the first result
    futures = [workers[n % len(workers)].call_async("square", n) for n in range(options.numbers)]
    at_once = sum(future.result() for future in as_completed(futures))

    # 3. Create an object that lives in its worker
    total = workers[0].create("total", Total, 0)
    for number in range(options.numbers):
        one_by_one = total.add(square(number))

    # 4. An exception of the worker is raised here too; its cause has the worker's traceback
    try:
        workers[0].call_remote("square", "three")
    except TypeError as error:
        print(f"{error}{error.__cause__}")
    print(f"The sum of {options.numbers} squares is {at_once}, and {one_by_one} one after the other.")

    # 5. Cleanup
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
