"""Kernel isolation for Python programs that nobody trusts.

What runs where: the supervisor (`supervisor.py`) is a fresh interpreter without site-packages; it
builds a private, read-only view of the file system (`view.py`), forks the zygote (`zygote.py`), and
stays outside of the zygote's process tree to kill what overstays. The zygote has the usual standard
modules imported and forks one child per program; the child locks itself down (`child.py`) and runs
the job (`harness.py`, `stand_ins.py` for tests beside a program). Everything here imports the
standard library alone, and is loaded by path into that fresh interpreter.
"""
