"""The sections of an analysis, one file each; `budgets.report` lists them in the order of the page.

A new section is a file with a subclass of `Section` and a line in `SECTIONS`.
"""
