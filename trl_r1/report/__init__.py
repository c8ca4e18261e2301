"""The report of runs: one HTML file that needs no network, and its curves as PNG.

`reading` finds what a run holds, `curves`, `samples`, `lineage`, `outcomes` and `stage_table` make
plain data of it, `page` puts the data and the assets beside this file into one document, `plots`
draws with matplotlib. Left out: any judgement of a run; the page shows what was stored.
"""
