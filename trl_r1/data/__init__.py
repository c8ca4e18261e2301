"""Data between stages: how hard prompts are, duplicates, leaks from evaluation sets, mixtures.

Each step is a function from a `Dataset` to a `Dataset` that notes what it did in a `DataLog`, from
which the dataset card is written: `difficulty`, `duplicates`, `decontamination`, `mixing`,
`lengths`. They read memory-mapped rows in chunks and hold a few numbers a row. `command.py` is
`trl-r1 data`. Left out on purpose: filters that need a model, and sampling.
"""
