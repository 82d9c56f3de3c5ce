"""Programs that the judge starts in processes of their own.

The judge itself imports only `memory` from here, and data about the programs.
"""
