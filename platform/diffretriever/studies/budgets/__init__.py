"""Budget sweeps and reports on them; import the leaf modules, so that searching loads no matplotlib."""
