"""One kernel's trial, from the compiler to the verdict.

kernel_trial  the judge: trusted processes that last, one verdict after another
stages        the stages of one trial; each returns `Ok` or `Decided`
timing        is it faster: plan, sample, decide
kernel_checks is it right: every case, with values nobody has seen
interpreted, on_device, device_clock  what Triton without a GPU needs, and a GPU
processes     the candidate, the reference and its rivals, as the judge drives them
"""
