"""One kernel's trial, from the compiler to the verdict.

kernel_trial     the judge: trusted processes that last, one verdict after another; is it ready here
stages           the stages of one trial: open, check, time, conclude
open_problem     a problem that the reference worker holds open; a GPU's clock beside the judge's
kernel_checks    is it right: every case, with new values
many_calls       several calls compared together, and wear: hundreds in one process
orders           how the calls of a batch get their inputs, as programs hand them over
plan             how many launches, rounds and calls the time allows
arms             the reference and the candidate, a batch at a time
sample           a case's samples: one look
looks            up to three looks at a case, one call at a time, and what only a GPU needs
decide           from samples to an answer: A/A floor, interval, physics, status
screening, screening_rounds  estimates for many kernels: groups, and a group timed together
candidate        a candidate's process in its sandbox
launches         all of them over a verdict, and what torch.compile as a candidate needs
compiling        libraries: of one kernel, and of many
sources          sources in Python that build an extension, or hold a class to be built
reference        the trusted worker, and starts of the reference to be timed

Kernels for a GPU that is not here are interpreted or emulated by what registers as a target.
"""
