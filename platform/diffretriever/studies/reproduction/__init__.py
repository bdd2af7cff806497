"""The paper's tables as data, and the job that fills them in with numbers of this platform."""
