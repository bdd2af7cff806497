"""Jobs on Ray: Ray Data graphs and Ray Train. With `jobs/` and `serve/` the only code that imports Ray."""
