"""Programs that the judge starts in processes of their own.

The judge itself takes only `memory`, and data about the programs, from here.
"""
