"""Programs that the judge starts in processes of their own; none is imported by the judge."""
