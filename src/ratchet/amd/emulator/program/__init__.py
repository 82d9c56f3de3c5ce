"""A program of the user's own, run on an emulated GPU: in processes of its own, unconfined."""
