"""Evaluations from the command line, what is stored of them, and how two compare.

`record` says what the files hold. The stage, and what the runner scores with, is
`trl_r1.stages.evaluation`; the statistics are `trl_r1.metrics`.
"""
