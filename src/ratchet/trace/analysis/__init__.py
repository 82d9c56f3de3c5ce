"""The structure under every answer: who launched what, the window, its parts and its steps.

`analyse` gives all of it for one trace. `links` ties device work to calls, ops and modules;
`identity` splits the window; `intervals` holds sets of time; `grouping` sums rows that agree.
"""
