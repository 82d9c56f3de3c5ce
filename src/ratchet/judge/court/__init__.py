"""Judge and ledger together: what the ledger knows is recalled, the rest is judged and kept.

It is the only caller of the judge outside the judge's own room, and the only writer of verdicts.

    calls        `ratchet.judge(kernel, problem)`, and the same for the command
    suite        a whole suite, its candidates and its score
    court        one court over one ledger: recall, judge, screen
    fleet        the machines that judge: this one, or a Ray cluster's
    static_rank  an order for kernels that cannot be timed here
    terms        the options of a verdict, and when a kept verdict answers
"""
