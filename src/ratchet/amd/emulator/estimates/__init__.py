"""Lower bounds on times from the emulator's counts: a candidate's, and its reference's."""
