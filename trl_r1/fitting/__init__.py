"""Fitting a pipeline to a machine: what it will take (`plan`), and adapters merged (`merge`)."""
