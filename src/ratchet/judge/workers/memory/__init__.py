"""Memory that workers share: batches of calls, on the machine's cores or on a GPU."""
