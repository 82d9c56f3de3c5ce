"""One kernel's trial, from the compiler to the verdict.

kernel_trial  the judge: trusted processes that last, one verdict after another
stages        the stages of one trial; each returns `Ok` or `Decided`
timing        is it faster: plan, sample, decide
kernel_checks is it right: every case, with new values
held_together several calls at once, and after many others
without_gpu   kernels for a GPU that is not here: interpreted or emulated
on_device, device_clock  what only a GPU needs
shared_compilations  what torch.compile as a candidate needs
screening     estimates for many kernels
readiness     whether kernels can be tried on this machine
processes     the candidate, the reference and its rivals, as the judge drives them
"""
