"""Several traces: a run's ranks (`ranks`, `pairing`), two runs (`diff`), runs by path (`runs`)."""
