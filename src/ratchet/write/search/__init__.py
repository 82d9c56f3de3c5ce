"""Search: schedules of a space, chosen by what the judge's screenings said so far.

`author` proposes the kernels, also at random; `evolution` and `optuna_search` choose schedules;
`cost_model` and `transfer` use what the ledger knows of other problems; `halving` decides which
kernels are screened again for longer; `confirmation` which of them get a verdict, and at what
level; `roofline` when nothing is left to win.
"""
