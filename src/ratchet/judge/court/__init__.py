"""Judge and ledger together: what the ledger knows is recalled, the rest is judged and kept.

It is the only caller of the judge outside the judge's own room, and the only writer of verdicts.

    calls            `ratchet.judge(kernel, problem)`, and the same for the command
    suite            a whole suite, its candidates and its score
    court            one court over one ledger: recall, judge, screen
    machines         the machines that judge: a protocol, this one, and a seat of a fleet
    ray_cluster      orders spread over the machines of a Ray cluster
    ray_fleet        a Ray cluster as the machines that judge
    show, show_emulated, show_suite  the words and tables of verdicts and suites
"""
