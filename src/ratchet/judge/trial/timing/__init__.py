"""Time a kernel, from plan to answer.

plan              how many launches, rounds and calls the time allows
arms              the reference and the candidate, a batch at a time
sample            a case's samples: one look
decide            from samples to an answer: A/A floor, interval, physics, status
group_sequential  up to three looks at a case, until it has an answer
"""
