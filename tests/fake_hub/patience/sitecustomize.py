"""Short waits between the Hub client's retries: on the PYTHONPATH of a subprocess it sees to them.

The client has no setting for them: it sleeps 1, 2, 4, 8 and 8 seconds, or as long as `Retry-After`
says. Only sleeps of `huggingface_hub` are shortened; the server's log tells how often it came back.
"""

import sys
import time

LONGEST_WAIT = 0.02
_sleep = time.sleep


def quick_sleep(seconds: float) -> None:
    """`time.sleep`, but hardly at all where the Hub client calls it."""
    caller = sys._getframe(1).f_globals.get("__name__", "")
    is_client = caller.partition(".")[0] == "huggingface_hub"
    _sleep(min(seconds, LONGEST_WAIT) if is_client else seconds)


if __name__ == "sitecustomize":
    time.sleep = quick_sleep
