"""`python -m holdfast.jobs VERB` is the same program as `holdfast jobs VERB`."""
