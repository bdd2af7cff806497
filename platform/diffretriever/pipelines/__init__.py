"""Jobs on Ray: Ray Data graphs and Ray Train. With `jobs/` and `serve/` the only code that imports Ray."""

DEVICE_VARIABLE = "DIFFRETRIEVER_ENCODER_DEVICE"
"""Environment variable that overrides the device of encoders, for clusters whose GPUs are synthetic."""
